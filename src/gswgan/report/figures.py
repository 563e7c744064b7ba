"""One drawing, four forms: inline SVG for a wide and for a narrow page, and an SVG and a PNG file.

On the page the colours are the page's own (CSS variables), so that a figure follows it from light to dark; the files
are on white.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

INK, MUTED, LINE = "#1d2127", "#59616d", "#d5d9df"
BLUE, ORANGE, GREEN = "#2a5fc4", "#b04e12", "#1f7a4c"
_VARIABLES = {
    INK: "currentColor", MUTED: "var(--muted)", LINE: "var(--line)", BLUE: "var(--blue)", ORANGE: "var(--orange)",
    GREEN: "var(--green)",
}  # fmt: skip
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "font.size": 9.0, "axes.titlesize": 9.5, "axes.labelsize": 9.0, "text.color": INK,
    "text.parse_math": False, "axes.labelcolor": MUTED, "axes.edgecolor": MUTED, "axes.titlecolor": INK,
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "axes.unicode_minus": False, "grid.color": LINE, "grid.linewidth": 0.6,
    "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "legend.frameon": False, "legend.fontsize": 8.5, "legend.labelcolor": INK, "lines.linewidth": 1.6,
    "lines.markersize": 4.5, "hatch.linewidth": 0.8,
}  # fmt: skip
WIDE, NARROW = 7.2, 3.7
"""Inches. Text keeps its size: a narrow drawing is another layout, not a smaller picture."""

Paint = Callable[[list[Axes], bool], None]
"""Draws into the panels; the second argument is whether the drawing is narrow."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure with its text for those who cannot see it."""

    name: str
    alt: str
    wide: str
    narrow: str
    svg: bytes
    png: bytes


def draw(
    name: str, alt: str, paint: Paint, *, height: float, panels: int = 1, columns: int = 2, narrow: float | None = None
) -> Figure:
    """Draw panels of `height` inches side by side; on a narrow page one below the other, of `narrow` inches."""
    rows = -(-panels // min(panels, columns))
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters of a class name that the font of the PNG lacks
        wide = _canvas((WIDE, height * rows), rows, min(panels, columns), panels, paint, False)
        slim = _canvas((NARROW, (narrow or height) * panels), panels, 1, panels, paint, True)
        return Figure(
            name=name, alt=alt, wide=_inline(_svg(wide, f"{name} wide", transparent=True), alt),
            narrow=_inline(_svg(slim, f"{name} narrow", transparent=True), alt),
            svg=_svg(wide, name, transparent=False).encode(), png=_png(wide),
        )  # fmt: skip


def _canvas(size: tuple[float, float], rows: int, columns: int, panels: int, paint: Paint, narrow: bool) -> Canvas:
    canvas = Canvas(figsize=size, layout="constrained")
    axes = canvas.subplots(rows, columns, squeeze=False).flatten().tolist()
    for spare in axes[panels:]:
        spare.set_visible(False)
    paint(axes[:panels], narrow)
    return canvas


def _svg(canvas: Canvas, salt: str, *, transparent: bool) -> str:
    """The same bytes every time: names from a salt, no date."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        canvas.savefig(out, format="svg", transparent=transparent, metadata={"Date": None})
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", out.getvalue(), flags=re.DOTALL)
    return re.sub(r"<!DOCTYPE.*?>\s*", "", text, flags=re.DOTALL)


def _png(canvas: Canvas) -> bytes:
    out = io.BytesIO()
    canvas.savefig(out, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    return out.getvalue()


def _inline(svg: str, alt: str) -> str:
    """An SVG for use inside the page: its colours and font, no unused names."""
    text = svg[svg.index("<svg") :]
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*</defs>", "", text)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| version="1.1"', "", text)
    used = set(re.findall(r"#([\w-]+)", text))
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", text)
    text = re.sub(r"font-size: ([\d.]+)px; font-family: [^;\"]+", r"font-size: \1px", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    view = re.search(r'viewBox="[^"]+"', text)
    assert view is not None, "matplotlib gives every SVG a view box"
    opening = f'<svg {view[0]} role="img" aria-label="{_attribute(alt)}">'
    return opening + text[text.index(">", text.index("<svg")) + 1 :].rstrip()


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
