"""The report page of a bundle, made again from the bundle's own files."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def can_make_page() -> bool:
    """Whether what `gswgan report` needs is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("jinja2", "matplotlib"))


def page_of(bundle: Path) -> bytes:
    """The page that `gswgan report` makes of a bundle."""
    from gswgan.report.page import single_page  # jinja2 and matplotlib are an extra
    from gswgan.report.release import read_release

    return single_page(read_release(bundle)).html.encode()
