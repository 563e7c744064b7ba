"""`gswgan evaluate`: what a synthetic set is worth, and whether it remembers its training records."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from gswgan.cli.console import PlainConsole, console, print_json
from gswgan.errors import DataError, PlanError
from gswgan.privacy.storage import check_private

if TYPE_CHECKING:
    from gswgan.data import ImageData
    from gswgan.evaluation.evaluate import Draw
    from gswgan.evaluation.evaluate import Progress as Report

_REAL, _WHAT = "The real data", "What to measure"


def evaluate(
    source: Annotated[Path, typer.Argument(
        metavar="RUN|FILE.npz", help="A run folder, its release folder alone, or an .npz with images and labels.")],
    data: Annotated[str | None, typer.Option(
        help="The real data that the set was made from: digits, mnist, fashion-mnist or a path. Default: the run's.",
        rich_help_panel=_REAL)] = None,
    test_data: Annotated[str | None, typer.Option(
        help="Held-out real data, where --data has none of its own.", rich_help_panel=_REAL)] = None,
    classes: Annotated[int | None, typer.Option(
        help="Number of classes, where the data does not state it and there is no run.", rich_help_panel=_REAL)] = None,
    metrics: Annotated[str | None, typer.Option(
        help="Comma-separated: inception_score, fid, precision, recall, label_accuracy, classifiers, nearest, "
             "membership. Default: all but fid, nearest and membership.", rich_help_panel=_WHAT)] = None,
    classifiers: Annotated[str, typer.Option(
        help="fast (logistic regression, MLP, CNN, Gaussian NB, random forest), all (the paper's 13), or names.",
        rich_help_panel=_WHAT)] = "fast",
    settings: Annotated[str, typer.Option(
        help="Of the classifiers: paper (fits its tables) or defaults (the libraries').",
        rich_help_panel=_WHAT)] = "paper",
    train_size: Annotated[int | None, typer.Option(
        help="Train classifiers on so many images, of the synthetic and of the real set.",
        rich_help_panel=_WHAT)] = None,
    seeds: Annotated[str, typer.Option(
        help="Comma-separated. Each draws another set from a run, and gives classifiers another start.",
        rich_help_panel=_WHAT)] = "1",
    samples: Annotated[int | None, typer.Option(
        help="Size of the synthetic set. Default: that of the training data; all of a file.",
        rich_help_panel=_WHAT)] = None,
    inception_weights: Annotated[Path | None, typer.Option(
        help="The 2015 Inception for fid, where the fid extra is not installed.", rich_help_panel=_WHAT)] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Machine-readable on stdout; the table goes to stderr.")] = False,
) -> None:  # fmt: skip
    """Measure a synthetic set as the paper does: `gswgan evaluate RUN --classifiers fast`.

    The figures are computed on real data: they are PRIVATE and kept in RUN/private (or beside the file), never in a
    release. Ctrl-C loses at most the figure in the making; the same command goes on from there.
    """
    from gswgan.api import pick_device
    from gswgan.evaluation.classifiers import check
    from gswgan.evaluation.evaluate import evaluate as measure
    from gswgan.evaluation.metrics import METRICS, EvaluationSetup, Request
    from gswgan.evaluation.references import reference_folders
    from gswgan.evaluation.result import Results

    errors = PlainConsole(stderr=True, highlight=False, soft_wrap=True, markup=False)
    named = tuple(_names(metrics or ""))
    for name in named:
        if name not in METRICS:
            raise PlanError("metrics", name, f"names out of {', '.join(METRICS)}")
    several = parse_classifiers(classifiers)
    check(several, settings)
    request = Request(
        metrics=named, classifiers=several, settings=settings, train_size=train_size,  # type: ignore[arg-type]
        seeds=parse_seeds(seeds), device=pick_device(device), inception_weights=inception_weights,
    )  # fmt: skip
    given = _Given(source, data, test_data, classes)
    train, test = given.real()
    draw, samples, identity = given.synthetic(train, samples, device)
    if train_size is not None and train_size > min(samples, train.n):
        raise DataError("train-size", train_size, f"at most {min(samples, train.n)}, the smaller of the two sets")
    places = reference_folders(train, test, given.run)
    setup = EvaluationSetup(train=train, test=test, places=places, request=request, samples=samples)
    results = Results(given.keep(), setup.basis(identity))
    if results.path is None:
        errors.print("Nothing is kept: figures on real data do not belong into a release.")
    try:
        with work_bar(errors) as (note, progress):
            summary = measure(draw, setup, results, note=note, progress=progress)
    except KeyboardInterrupt:
        errors.print(f"stopped; the same command goes on. So far: {results.path or 'nothing is kept'}")
        raise typer.Exit(130) from None
    summary |= {"seeds": list(request.seeds)}
    (errors if json else console).print(_table(summary))
    if json:
        print_json(summary)
    elif results.path is not None:
        console.print(f"PRIVATE, not for release: {results.path}")


class _Given:
    """What the arguments name: the real data, the synthetic set, and where figures may be kept."""

    def __init__(self, source: Path, data: str | None, test_data: str | None, classes: int | None) -> None:
        from gswgan.run.folder import find_release

        self.source, self.data, self.test_data, self.classes = source, data, test_data, classes
        is_file = source.is_file() or source.suffix.lower() == ".npz"
        self.folder = None if is_file else find_release(source)
        whole = self.folder is not None and self.folder.release == self.folder.root / "release"
        self.run = self.folder.root if self.folder is not None and whole and self.folder.private.is_dir() else None
        if data is None and (self.run is None or self.folder is None or not self.folder.source.exists()):
            raise DataError("data", None, "the real data to measure against", "Pass --data.")

    def keep(self) -> Path | None:
        """The file for the figures; None where it would lie in a release."""
        if self.folder is None:
            in_release = (self.source.resolve().parent / "model.json").exists()
            return None if in_release else self.source.with_suffix(".evaluation.json")
        if self.run is None:
            return None
        check_private(self.folder.private)
        return self.folder.private / "evaluation.json"

    def real(self) -> tuple[ImageData, ImageData | None]:
        """Training and held-out data; None where there is no held-out part."""
        from gswgan.cli.real_data import load_data, load_held_out
        from gswgan.data.download import FEMNIST_WRITERS
        from gswgan.data.sources import NAMES

        where: dict[str, Any] = {"spec": self.data, "classes": self.classes}
        if self.folder is not None and self.data is None:
            where = self.folder.remembered_source()
        elif self.folder is not None:
            facts = self.folder.plan().facts
            where |= {"image_size": facts.image_size, "labels": facts.classes > 1}
            stated = facts.classes == 1 or (self.data in NAMES and self.data != FEMNIST_WRITERS.name)
            where["classes"] = None if stated else facts.classes  # FEMNIST has 62 classes, or 36
        train = load_data(**where)
        if self.folder is not None and train.classes != self.folder.plan().facts.classes:
            known = self.folder.plan().facts.classes
            raise DataError("data", f"{train.name}, {train.classes} classes", f"{known} classes, as the run has")
        return train, load_held_out(train, self.test_data, **where)

    def synthetic(self, train: ImageData, samples: int | None, device: str) -> tuple[Draw, int, str]:
        """How a seed becomes a synthetic set, its size, and a checksum of what it comes from."""
        from gswgan.api import load
        from gswgan.evaluation.synthetic import PER_CLASS, make_synthetic, read_synthetic, stratified

        if self.folder is None:
            content = read_synthetic(self.source, train)
            size = content.n if samples is None else samples
            if size > content.n:
                raise DataError("samples", size, f"at most {content.n}, the images of {self.source}")
            checksum = hashlib.sha256(self.source.read_bytes()).hexdigest()
            return lambda seed: content if size == content.n else stratified(content, size, seed), size, checksum
        model = load(self.source, device=device)
        make_synthetic(*model.sample(PER_CLASS * train.classes, seed=0), train, name=str(self.source))  # does it fit?
        size = train.n if samples is None else samples
        if size < PER_CLASS * train.classes:
            raise DataError("samples", size, f"at least {PER_CLASS * train.classes}, {PER_CLASS} a class")
        checksum = hashlib.sha256(self.folder.generator.read_bytes()).hexdigest()
        return lambda seed: make_synthetic(*model.sample(size, seed=seed), train, name="run"), size, checksum


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip().replace("-", "_") for part in text.split(",") if part.strip()))


def parse_classifiers(text: str) -> tuple[str, ...]:
    """fast, all, or names."""
    from gswgan.evaluation.classifiers import ALL, FAST

    return {"fast": FAST, "all": ALL}.get(text) or tuple(_names(text))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between."""
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
        if all(0 <= seed < 2**32 for seed in found):
            return found
    except ValueError:
        pass
    raise PlanError("seeds", text, "whole numbers with commas between, such as 1,2,3")


@contextlib.contextmanager
def work_bar(errors: Console) -> Iterator[tuple[Any, Report]]:
    """A bar on stderr that weighs each measurement by its estimated time; yields how to print and how to move it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors) as bar:
        task = bar.add_task("", total=None)
        yield (
            bar.console.print,
            lambda what, done, total: bar.update(
                task, description=what, completed=done if total else 1, total=total or 1
            ),
        )


def _table(summary: dict[str, Any]) -> Table:
    table = Table("PRIVATE", "synthetic", "real", "calibrated", title_justify="left")
    rows = {name: summary[name] for name in ("inception_score", "fid", "precision", "recall", "label_accuracy")}
    rows |= summary["classifiers"] | {"average accuracy": summary["average_accuracy"]}
    for group in ("nearest", "membership"):
        rows |= {f"{group}: {name.replace('_', ' ')}": entry for name, entry in (summary[group] or {}).items()}
    for name, entry in rows.items():
        if entry is not None:
            spread = "" if entry["std"] is None else f" ± {entry['std']:.3f}"
            real = f"{entry['real']:.3f}" if entry.get("real") is not None else ""
            real = f"{entry['chance']} by chance" if "chance" in entry else real
            calibrated = f"{entry['calibrated']:.1%}" if entry.get("calibrated") is not None else ""
            table.add_row(name.replace("_", " "), f"{entry['mean']:.3f}{spread}", real, calibrated)
    return table
