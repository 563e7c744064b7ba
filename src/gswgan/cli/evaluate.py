"""`gswgan evaluate`: the utility of a synthetic set, and whether it reproduces its training records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gswgan.cli.console import Json, console, errors, print_json, table
from gswgan.cli.progress import work_bar
from gswgan.cli.reading_options import READING, Background, Layout, PixelRange

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
    pixel_range: PixelRange = None,
    background: Background = None,
    layout: Layout = None,
    metrics: Annotated[str | None, typer.Option(
        help="Comma-separated: inception_score, precision, recall, label_accuracy, classifiers; only where named: fid, "
             "kid, inception_precision, inception_recall, nearest, membership.", rich_help_panel=_WHAT)] = None,
    classifiers: Annotated[str, typer.Option(
        help="fast (logistic regression, MLP, CNN, Gaussian NB, random forest), all (the paper's 13), or names, "
             "resnet (a ResNet-18, for a GPU) among them.",
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
        help="The 2015 Inception for fid and kid, where the fid extra is missing.", rich_help_panel=_WHAT)] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    json: Json = False,
) -> None:  # fmt: skip
    """Measure a synthetic set as the paper does: `gswgan evaluate RUN --classifiers fast`.

    The figures are computed on real data: they are PRIVATE and kept in RUN/private (or beside the file), never in a
    release. Ctrl-C loses at most the figure being computed; the same command continues from there.
    """
    reading = {name: value for name, value in locals().items() if name in READING}
    from gswgan.evaluation.evaluate import evaluate as measure
    from gswgan.evaluation.inputs import EvaluationInputs, parse_request

    request = parse_request(metrics, classifiers, settings, seeds, train_size=train_size, device=device,
                            inception_weights=inception_weights)  # fmt: skip
    inputs = EvaluationInputs(source, data, test_data, classes, reading, note=errors.print)
    draw, setup, results = inputs.setup(request, samples)
    with work_bar(f"So far: {results.path or 'nothing is kept'}") as (note, progress):
        summary = measure(draw, setup, results, note=note, progress=progress) | inputs.about(request)
    _show(summary, results.path, json)


def _show(summary: dict[str, Any], kept: Path | None, json: bool) -> None:
    console.print(_table(summary))
    if kept is not None:
        console.print(f"PRIVATE, not for release: {kept}")
    if json:
        print_json(summary)


def _table(summary: dict[str, Any]) -> str:
    from gswgan.evaluation.result import TOP

    shown = []
    rows = {name: summary[name] for name in TOP}
    rows |= summary["classifiers"] | {"average accuracy": summary["average_accuracy"]}
    for group in ("nearest", "membership"):
        rows |= {f"{group}: {name.replace('_', ' ')}": entry for name, entry in (summary[group] or {}).items()}
    for name, entry in rows.items():
        if entry is not None:
            spread = "" if entry["std"] is None else f" ± {entry['std']:.3f}"
            spread += f" (error {entry['error']:.4f})" if "error" in entry else ""
            real = f"{entry['real']:.3f}" if entry.get("real") is not None else ""
            real = f"{entry['chance']} by chance" if "chance" in entry else real
            calibrated = f"{entry['calibrated']:.1%}" if entry.get("calibrated") is not None else ""
            shown.append((name.replace("_", " "), f"{entry['mean']:.3f}{spread}", real, calibrated))
            for label, part in entry.get("by_class", {}).items():
                real = f"{part['real']:.3f}" if part["real"] is not None else ""
                shown.append((f"  {label}", f"{part['mean']:.3f}", real, ""))
    return table(("PRIVATE", "synthetic", "real", "calibrated"), shown)
