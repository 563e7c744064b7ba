from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="needs the extra gswgan[eval]")
pytest.importorskip("matplotlib", reason="needs the extra gswgan[eval]")

from browser import INSTALL, Page, browser, find_browser
from report_runs import a_copy, a_run, evaluated

from gswgan.cli.report import report

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_browser() is None, reason=INSTALL),
]


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with browser(find_browser() or "") as page:
        yield page


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("pages")
    kinds = ("evil", "paper", "kernel")
    mine = {kind: evaluated(a_copy(kind, place / f"{kind}-with-a-name-as-long-as-people-give-them")) for kind in kinds}
    wanted: dict[str, tuple[list[Path], bool]] = {
        kind: ([a_run(kind)], False) for kind in (*kinds, "ensemble", "refined", "void")
    }
    wanted |= {"one, private": ([mine["evil"]], True)}
    wanted |= {"three": (list(mine.values()), False), "three, private": (list(mine.values()), True)}
    for at, (runs, private) in enumerate(wanted.values()):
        report(runs, private=private, out=place / str(at))
    return {name: place / str(at) / "report.html" for at, name in enumerate(wanted)}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_in_a_browser(tab: Page, pages: dict[str, Path], width: int, scheme: str, tmp_path: Path) -> None:
    for name, path in pages.items():
        tab.open(path, width=width, scheme=scheme)
        assert tab.requests() == [path.resolve().as_uri()], name
        assert tab.complaints() == [], name
        scroll, client = tab.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert client == width
        assert scroll <= client, name
        assert tab.evaluate("document.documentElement.lang") == "en"
        broken = "[...document.images].filter(image => !image.complete || !image.naturalWidth).length"
        assert tab.evaluate("document.images.length") > 0
        assert tab.evaluate(broken) == 0, name
        shown = "[...document.querySelectorAll('.chart svg')].map(d => d.getBoundingClientRect().width).filter(w => w)"
        widths = tab.evaluate(shown)
        assert len(widths) == tab.evaluate("document.querySelectorAll('.chart').length"), name  # wide or narrow
        assert all(wide > 280 for wide in widths), name
        dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        assert dark == (scheme == "dark")
    tab.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_text_in_drawings_is_large_enough_on_a_phone(tab: Page, pages: dict[str, Path]) -> None:
    tab.open(pages["kernel"], width=390)
    heights = tab.evaluate(
        "[...document.querySelectorAll('.narrow svg text')].map(text => text.getBoundingClientRect().height)"
    )
    assert min(heights) >= 10


def test_the_browser_test_would_notice(tab: Page, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<div style="width: 2000px">x</div><img src="missing.png"><script>console.error("no"); nowhere()</script>'
    )
    tab.open(bad, width=390)
    assert len(tab.requests()) == 2
    assert len(tab.complaints()) >= 2
    assert tab.evaluate("document.documentElement.scrollWidth") > 390


def test_print(tab: Page, pages: dict[str, Path], tmp_path: Path) -> None:
    tab.open(pages["kernel"], width=1280, scheme="dark")
    tab.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(29, 33, 39)"  # dark ink, whatever the screen
    tab.call("Emulation.setEmulatedMedia", media="")
