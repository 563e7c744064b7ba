"""`gswgan benchmark`: methods compared with each other, in the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gswgan.cli.console import Json, console, needs_extra, print_json
from gswgan.cli.progress import work_bar
from gswgan.cli.reading_options import (
    Background,
    Channels,
    Classes,
    GroupBy,
    ImageSize,
    Layout,
    Missing,
    PixelRange,
    reading_of,
)

_DATA, _WHAT = "Data", "What to compare"


def benchmark(
    out: Annotated[Path, typer.Option(
        help="The folder for the runs, tables and page. An existing one is continued.")],
    data: Annotated[list[str] | None, typer.Option(
        help="digits (the default), mnist, fashion-mnist or a path; several times for several data sets, without the "
             "options that say how to read them.",
        rich_help_panel=_DATA)] = None,
    test_data: Annotated[str | None, typer.Option(
        help="Held-out real data, where --data (a single one) has none of its own.", rich_help_panel=_DATA)] = None,
    classes: Classes = None,
    image_size: ImageSize = None,
    channels: Channels = None,
    pixel_range: PixelRange = None,
    background: Background = None,
    layout: Layout = None,
    group_by: GroupBy = None,
    missing: Missing = None,
    methods: Annotated[str, typer.Option(
        help="Comma-separated: all, kernel, ensemble (both GS-WGAN), a baseline, or METHOD:PRESET. What runs as it "
             "was published (gswgan:paper, dp-sgd-gan:dp-cgan) appears once, at its own noise.",
        rich_help_panel=_WHAT)] = "all",
    epsilon: Annotated[str, typer.Option(
        help="Comma-separated: the noise of each method is calibrated to each.", rich_help_panel=_WHAT)] = "10",
    seeds: Annotated[str, typer.Option(
        help="Comma-separated. Each is a run of its own, with fresh noise.", rich_help_panel=_WHAT)] = "1",
    samples: Annotated[int | None, typer.Option(
        help="Synthetic images per run. Default: 60000; 5000 of tiny images (digits).", rich_help_panel=_WHAT)] = None,
    classifiers: Annotated[str, typer.Option(
        help="fast (logistic regression, MLP, CNN, Gaussian NB, random forest), all (the paper's 13), or names.",
        rich_help_panel=_WHAT)] = "fast",
    fid: Annotated[bool | None, typer.Option("--fid/--no-fid",
        help="Measure FID. Default: on a GPU.", show_default=False, rich_help_panel=_WHAT)] = None,
    inception_weights: Annotated[Path | None, typer.Option(
        help="The 2015 Inception for FID, where the fid extra is not installed.", rich_help_panel=_WHAT)] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    json: Json = False,
) -> None:  # fmt: skip
    """Compare methods: `gswgan benchmark --data digits --methods all --epsilon 1,3,10 --seeds 1,2,3 --out FOLDER`.

    Trains, samples and measures each method at each epsilon with each seed; writes benchmark.json, benchmark.md and
    report.html. The figures are computed on real data: they are PRIVATE unless the data is public. Stopped at any
    moment, the same command continues; a run that fails does not stop the others, and is tried again next time.
    """
    needs_extra("benchmark", "jinja2", "matplotlib", "sklearn")
    from gswgan.api.training import few_threads
    from gswgan.benchmark.options import load_sets, parse_options
    from gswgan.benchmark.run import benchmark as compare
    from gswgan.plan.settings import pick_device

    parsed = parse_options(methods, epsilon, seeds, classifiers)
    sets = load_sets(data or ["digits"], test_data, **reading_of(locals()))
    side = max(train.image_size for train, _ in sets)
    with few_threads(side, pick_device(device)), work_bar() as (note, progress):
        found = compare(
            sets, out=out, note=note, progress=progress, samples=samples, fid=fid, device=device,
            inception_weights=inception_weights, **parsed,
        )  # fmt: skip
    _show(found, out, json)


def _show(found: dict[str, Any], out: Path, json: bool) -> None:
    console.print((out / "benchmark.md").read_text())
    for name in ("report.html", "benchmark.md", "benchmark.json", "figures"):
        console.print(f"{out / name} ({'computed on public data' if found['public'] else 'PRIVATE, not for release'})")
    if json:
        print_json(found)
    if found["failed"]:
        raise typer.Exit(1)
