"""`gswgan train`: from data to a run folder with a generator and its guarantee."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gswgan.cli.console import Json
from gswgan.cli.reading_options import (
    Background,
    Channels,
    Classes,
    Fit,
    GroupBy,
    ImageSize,
    Layout,
    Missing,
    PixelRange,
)
from gswgan.cli.train_options import TrainOptions

_DATA, _GUARANTEE, _RUN = "Data", "Guarantee", "Run"


def train(
    data: Annotated[str | None, typer.Option(
        help="digits (the default), mnist, fashion-mnist, cifar10, bloodmnist and the like, an idx folder, an .npz "
        "with `images` (and `labels`), a folder of .parquet or .npz files of any size, or a folder with a subfolder of "
        "images (png, jpg, bmp, tif, dcm) for each class. By person: mnist-writers, femnist-writers, a LEAF folder, a "
        "TFF .h5, or a folder with "
        "--layout or --group-by.", rich_help_panel=_DATA)] = None,
    classes: Classes = None,
    image_size: ImageSize = None,
    channels: Channels = None,
    labels: Annotated[bool, typer.Option(help="Use the labels, or learn one class.", rich_help_panel=_DATA)] = True,
    public: Annotated[str | None, typer.Option(metavar="DATA",
        help="Images that nobody needs to protect, as you state by this option: read as --data is, cut to squares, "
        "scaled, without labels. Presets kernel and refined train their features on them, refined its denoiser too. "
        "Their number and digest are published.",
        rich_help_panel=_DATA)] = None,
    public_features: Annotated[str | None, typer.Option(metavar="NAME",
        help="vgg19: half of the features see what a network makes of an image that others trained on public "
        "photographs (its file: docs/data.md). Presets kernel and refined. It is published with the release.",
        rich_help_panel=_DATA)] = None,
    name: Annotated[str | None, typer.Option(
        help="Public name of the data, for card and report. Default: that of a known data set, or the kind of source; "
        "files and folders are not named.", rich_help_panel=_DATA)] = None,
    pixel_range: PixelRange = None,
    background: Background = None,
    layout: Layout = None,
    fit: Fit = None,
    group_by: GroupBy = None,
    missing: Missing = None,
    min_records: Annotated[int | None, typer.Option(
        help="Leave out persons with fewer records.", rich_help_panel=_DATA)] = None,
    accuracy: Annotated[str | None, typer.Option(metavar="FROM..TO",
        help="Leave out persons at whose records --reference-classifier is outside (the paper: 0.939..1, or 0..0.882).",
        rich_help_panel=_DATA)] = None,
    reference_classifier: Annotated[Path | None, typer.Option(
        help="The file of a classifier trained on public data (`gswgan reference-classifier`).",
        rich_help_panel=_DATA)] = None,
    epsilon: Annotated[float | None, typer.Option(
        help="Target epsilon; the noise is calibrated to it. Default: the preset's, 10.",
        rich_help_panel=_GUARANTEE)] = None,
    delta: Annotated[float | None, typer.Option(
        help="Target delta, well below 1 / records. Default: 1e-5, and 0.1 / records from 100,000 on.",
        rich_help_panel=_GUARANTEE)] = None,
    neighbours: Annotated[str | None, typer.Option(
        help="replace-one (the default: one record is exchanged) or zeroed (one record's contribution is removed; "
        "weaker, for comparison with epsilons of one record added or removed; presets kernel and refined).",
        rich_help_panel=_GUARANTEE)] = None,
    allow_large_delta: Annotated[bool, typer.Option("--allow-large-delta",
        help="Take a delta of 1 / records (or 1 / persons) or more, which is refused otherwise: it allows one of them "
        "to be published in the clear.", rich_help_panel=_GUARANTEE)] = False,
    force_spend: Annotated[bool, typer.Option("--force-spend",
        help="Train although there are too few records for any class to be told from the noise, or all images are "
        "nearly black, which is refused otherwise: epsilon is spent for nothing, most probably.",
        rich_help_panel=_GUARANTEE)] = False,
    budget: Annotated[Path | None, typer.Option(
        help="Enter the run into this budget file before it releases anything; refused if all runs in it together "
        "would go beyond its budget. Make one: gswgan budget FILE --epsilon 10 --delta 1e-5.",
        rich_help_panel=_GUARANTEE)] = None,
    method: Annotated[str | None, typer.Option(
        help="gswgan (the default), or a baseline: dp-merf, dp-merf-ae, dp-sgd-gan, g-pate, pate-gan, "
        "gan (NOT private), or by person fed-avg-gan.",
        rich_help_panel=_RUN)] = None,
    preset: Annotated[str | None, typer.Option(
        help="gswgan: kernel, refined (a denoiser goes on from there), ensemble (GS-WGAN, correctly accounted), "
        "ensemble-alone (without the kernel critic) or paper (as published, for comparison); "
        "dp-merf, dp-merf-ae: default or paper (as published); dp-sgd-gan: revisited or dp-cgan (as published).",
        rich_help_panel=_RUN)] = None,
    critics: Annotated[int | None, typer.Option(
        help="Number of critics or teachers, each with its own part of the data (ensemble, paper, g-pate, pate-gan).",
        rich_help_panel=_RUN)] = None,
    steps: Annotated[int | None, typer.Option(
        help="Training steps. Each one releases with an ensemble and most baselines, none with the kernel critic. With "
        "refined: of DP-SGD alone, which come after thousands that release nothing more.",
        rich_help_panel=_RUN)] = None,
    out: Annotated[Path | None, typer.Option(
        help="The run folder to make. Default: runs/DATA-PRESET, runs/DATA-METHOD.", rich_help_panel=_RUN)] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.", rich_help_panel=_RUN)] = "auto",
    workers: Annotated[str | None, typer.Option(metavar="N|ray",
        help="Processes that read a folder of files, or ray: the Ray cluster at $RAY_ADDRESS. Default: one per core.",
        rich_help_panel=_RUN)] = None,
    seed: Annotated[int | None, typer.Option(
        help="Fixes partition, initial weights and latent codes; never the noise. Default: 0.",
        rich_help_panel=_RUN)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run",
        help="Print the plan, what more or less data would buy, and which critic to use, and how "
        "long the run would take on this machine (an estimate for preset kernel alone). Nothing is released.",
        rich_help_panel=_RUN)] = False,
    save_plan: Annotated[Path | None, typer.Option(
        help="Save the plan to this file, then stop.", rich_help_panel=_RUN)] = None,
    plan_file: Annotated[Path | None, typer.Option("--plan",
        help="Run a saved plan (needs no dp-accounting).", rich_help_panel=_RUN)] = None,
    resume: Annotated[Path | None, typer.Option(
        help="Continue this run where it stopped.", rich_help_panel=_RUN)] = None,
    source: Annotated[Path | None, typer.Option("--from",
        help="Train a new generator on the embedding that this run released: no data, no further cost.",
        rich_help_panel=_RUN)] = None,
    insecure_reproducible: Annotated[bool, typer.Option("--insecure-reproducible",
        help="Take the noise from the seed. For tests: the release then has NO guarantee.",
        rich_help_panel=_RUN)] = False,
    show_private: Annotated[bool, typer.Option("--show-private",
        help="Also show figures computed on real held-out data, marked PRIVATE: not for release.",
        rich_help_panel=_RUN)] = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Train a private generator: `gswgan train --data digits --epsilon 10`.

    Makes a run folder with release/ (what may be published: generator, guarantee, ledger, card, samples) and
    private/ (what may not). Ctrl-C leaves a run that `--resume` continues.
    """
    options = TrainOptions(**locals())
    from gswgan.cli.training import start_training

    start_training(options)
