"""`gswgan`: the verbs and how errors are shown."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from typing import Annotated

import typer

from gswgan.cli import (
    audit,
    benchmark,
    budget,
    debug,
    evaluate,
    federate,
    privacy,
    reference_classifier,
    release,
    report,
    sample,
    train,
)
from gswgan.errors import GswganError, printable

app = typer.Typer(
    name="gswgan", epilog="Start with: gswgan train --data digits", no_args_is_help=True,
    pretty_exceptions_enable=False, rich_markup_mode="markdown",
)  # fmt: skip
app.command(name="train")(train.train)
app.command(name="sample")(sample.sample)
app.command(name="export")(sample.export)
app.command(name="evaluate")(evaluate.evaluate)
app.command(name="benchmark")(benchmark.benchmark)
app.command(name="reference-classifier")(reference_classifier.reference_classifier)
app.command(name="report")(report.report)
app.command(name="release")(release.release)
app.command(name="verify")(release.verify)
app.command(name="budget")(budget.budget)
app.command(name="audit")(audit.audit)
app.add_typer(privacy.app, name="privacy")
app.add_typer(federate.app, name="federate")
federate.app.command(name="debug")(debug.debug)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"gswgan {importlib.metadata.version('gswgan')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option(
        "--version", help="Print the version and exit.", callback=_show_version, is_eager=True)] = False,
) -> None:  # fmt: skip
    """Turn a sensitive image data set into a synthetic one, with a privacy guarantee one can check."""


def _out_of_memory(wrong: Exception) -> None:
    what = str(wrong).partition("DefaultCPUAllocator: ")[2] or str(wrong)
    what = what.split(". ")[0] or "out of memory"
    todo = "Nothing that was released is lost. Use a machine with more memory, smaller images or fewer records."
    print(f"gswgan: {what}. {todo}", file=sys.stderr)
    sys.exit(2)


def run() -> None:
    """The console script: an error is one message on stderr and exit code 2, never a traceback."""
    os.umask(os.umask(0o077) | 0o022)  # nobody else may write to what is made here, whatever the umask was
    try:
        if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started this process, and others
            from gswgan.cli.ranks import run_in_ranks

            run_in_ranks(app)
        else:
            app()
    except GswganError as wrong:
        print(f"gswgan: {wrong}", file=sys.stderr)
        sys.exit(2)
    except OSError as wrong:
        where = f" ({wrong.filename})" if wrong.filename else ""
        said = printable(f"{wrong.strerror or wrong}{where}")
        print(f"gswgan: {said}. Nothing that was released is lost.", file=sys.stderr)
        sys.exit(2)
    except MemoryError as wrong:
        _out_of_memory(wrong)
    except RuntimeError as wrong:
        if type(wrong).__name__ != "OutOfMemoryError" and "allocate memory" not in str(wrong):
            raise  # torch's errors are told by their names and words, since it is not imported here
        _out_of_memory(wrong)
    except KeyboardInterrupt:
        print("gswgan: stopped.", file=sys.stderr)
        sys.exit(130)
