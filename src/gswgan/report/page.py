"""From what was read to the page: texts, tables, figures, one HTML file."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from PIL import Image

from gswgan.evaluation.result import TOP
from gswgan.privacy.storage import make_folder, write_durably
from gswgan.report import words
from gswgan.report.charts import epsilon_chart, sample_chart, signal_chart, signal_rows
from gswgan.report.compare import comparison
from gswgan.report.figures import Figure
from gswgan.report.private import Private, Records
from gswgan.report.private_charts import norm_chart, title, training_chart, utility_chart
from gswgan.report.release import STRIP, Release

_OURS = re.compile(r"(samples(-\d+)?|curves-\d+|signal|epsilon|utility|training|norms|tradeoff)\.(png|svg)")


@dataclass(frozen=True, kw_only=True)
class Page:
    """The HTML and the figures that go beside it."""

    html: str
    figures: list[Figure]

    def write(self, folder: Path, *, private: bool) -> Path:
        """report.html and figures/ in the folder, neither of them a link; an earlier report there is replaced."""
        folder = folder.parent.resolve() / folder.name  # the folder itself may be no link: anybody may have made it
        place = folder / "figures"
        for new in (folder, place):
            make_folder(new, private=private and not new.exists())  # the files are closed in any case
        files = {f"{figure.name}.{kind}": getattr(figure, kind) for figure in self.figures for kind in ("png", "svg")}
        for old in place.iterdir():
            if _OURS.fullmatch(old.name) and old.name not in files:
                old.unlink()
        mode = 0o600 if private else 0o644
        for name, content in files.items():
            write_durably(place / name, content, mode=mode)
        write_durably(folder / "report.html", self.html.encode(), mode=mode)
        return folder / "report.html"


def comparison_page(runs: Sequence[tuple[str, Release]], private: Sequence[Private] | None = None) -> Page:
    """Several releases side by side, by name; with private parts also their utility."""
    content, figures = comparison(runs, private)
    cards = [
        {"name": name, "words": words, "samples": _samples(release, 1), "release": release} for name, release in runs
    ]
    beside = [sample_chart(release, f"samples-{index}") for index, (_, release) in enumerate(runs, 1)]
    html = render("comparison.html.j2", **content, cards=cards, private=private is not None, words=words)
    return Page(html=html, figures=[*beside, *figures.values()])


def single_page(release: Release, private: Private | None = None, records: Records | None = None) -> Page:
    """The page of one release, from the release alone; with a private part also real data and what it measured."""
    charts: dict[str, Figure | None] = {"samples": sample_chart(release)}
    kernel = release.embedding is not None
    charts |= {"signal": signal_chart(release)} if kernel else {"epsilon": epsilon_chart(release)}
    measured: dict[str, Any] = {}
    if private is not None:
        measured = _measured(private)
        charts["training"], charts["norms"] = (
            training_chart(private),
            norm_chart(private, getattr(release.plan.privacy or release.plan.critic, "clip_norm", 0.0)),
        )
        charts["utility"] = utility_chart(measured["classifiers"]) if measured["classifiers"] else None
    html = render(
        "report.html.j2", release=release, words=words, samples=_samples(release, 8),
        first_samples=_rows(release, release.first_samples, 1),
        signal=signal_rows(release) if kernel else [], charts=charts, private=private, measured=measured,
        records=records, beside=[] if records is None else _beside(release, records),
    )  # fmt: skip
    return Page(html=html, figures=[figure for figure in charts.values() if figure is not None])


def _measured(private: Private) -> dict[str, Any]:
    """The evaluation by table; empty tables where nothing was measured."""
    found = private.evaluation or {}
    quality = {name: found.get(name) for name in TOP}
    classifiers = {name: entry for name, entry in (found.get("classifiers") or {}).items() if entry}
    return {
        "classifiers": classifiers,
        "by_class": {name: entry["by_class"] for name, entry in classifiers.items() if entry.get("by_class")},
        "average": found.get("average_accuracy"), "quality": {name: entry for name, entry in quality.items() if entry},
        "nearest": found.get("nearest") or {}, "membership": found.get("membership") or {},
        "skipped": found.get("skipped") or {}, "basis": found.get("basis") or {}, "chosen_on": found.get("chosen_on"),
    }  # fmt: skip


def _samples(release: Release, most: int) -> list[dict[str, Any]]:
    """By class: its name and strips of images as data URIs."""
    return _rows(release, release.samples, most)


def _rows(release: Release, samples: Mapping[int, np.ndarray], most: int) -> list[dict[str, Any]]:
    names = release.plan.facts.class_names
    rows = []
    for label, images in samples.items():
        strips = [strip_uri(images[at : at + STRIP]) for at in range(0, min(len(images), most * STRIP), STRIP)]
        rows.append({"name": names[label] if len(names) > 1 else "", "strips": strips})
    return rows


def _beside(release: Release, records: Records) -> list[dict[str, Any]]:
    """By class: its name, a strip of synthetic images and one of real ones. For the private page alone."""
    names = release.plan.facts.class_names
    return [
        {
            "name": names[label] if len(names) > 1 else "",
            "synthetic": strip_uri(images[:STRIP]),
            "real": strip_uri(records.by_class[label][:STRIP]),
        }
        for label, images in release.samples.items()
        if len(records.by_class.get(label, ()))
    ]


def strip_uri(images: np.ndarray) -> str:
    """Images [n, h, w] or [n, h, w, 3] in a row, as a PNG with clear gaps, as a data URI."""
    scale = max(1, 32 // images.shape[1])
    large = images.repeat(scale, axis=1).repeat(scale, axis=2)
    large = large[..., None] if large.ndim == 3 else large
    solid = np.concatenate([large, np.full_like(large[..., :1], 255)], axis=-1)
    gap = np.zeros((large.shape[1], max(1, large.shape[2] // 16), solid.shape[-1]), np.uint8)
    parts = [part for image in solid for part in (image, gap)][:-1]
    out = io.BytesIO()
    Image.fromarray(np.concatenate(parts, axis=1)).save(out, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def render(template: str, **content: Any) -> str:
    """Fill a template; everything is escaped but our own style sheet and drawings."""
    here = resources.files("gswgan.report")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (here / name).read_text("utf-8")), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"figure": words.figure, "title": title, "drawing": Markup}
    style = (here / "page.css").read_text("utf-8")
    return environment.get_template(template).render(style=Markup(style), **content)
