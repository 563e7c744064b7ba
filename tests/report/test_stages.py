"""The page of preset `refined`: images of both stages, and what each of them cost by the ledger."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="needs the extra gswgan[eval]")
pytest.importorskip("matplotlib", reason="needs the extra gswgan[eval]")

from report_runs import a_copy, a_run

from gswgan.privacy import Accountant
from gswgan.report import words
from gswgan.report.charts import epsilon_chart
from gswgan.report.page import single_page
from gswgan.report.release import read_release
from gswgan.run.folder import RunFolder


def test_refined_page_shows_both_stages() -> None:
    page = single_page(read_release(a_run("refined"))).html
    text = " ".join(re.sub("<[^>]+>", " ", page).split())
    assert "After the first stage" in text
    assert page.count('alt="Synthetic images of class') == 6  # three classes, twice
    plan = RunFolder(a_run("refined")).plan()
    alone = {
        "Kernel critic": Accountant().epsilon(plan.critic.event(True), plan.guarantee.delta),
        "DP-SGD": Accountant().epsilon(plan.privacy.total(), plan.guarantee.delta),
    }
    row = r'<tr[^>]*><th scope="row">([^<]*)</th><td class="number">(\d+)</td><td class="number">([^<]*)'
    cells = re.findall(row, page)
    assert [(name.split(":")[0], int(times)) for name, times, _ in cells] == [
        ("Kernel critic", 1), ("DP-SGD", 4), ("Both together", 5)
    ]  # fmt: skip
    stated = [words.figure(one) for one in (*alone.values(), plan.guarantee.epsilon)]
    assert [epsilon for *_, epsilon in cells] == stated
    assert "critics that took part" not in text
    assert "Everybody's data is in 1 release; to each of the others" in html.unescape(text)
    chart = epsilon_chart(read_release(a_run("refined")))
    assert chart is not None
    assert f"from {words.figure(plan.curve[0][1])} to" in chart.alt
    assert "60 of 300 on average" in text


def test_a_refined_release_of_an_earlier_version_has_no_first_images(tmp_path: Path) -> None:
    run = a_copy("refined", tmp_path / "run")
    RunFolder(run).first_generator.unlink()
    assert "After the first stage" not in single_page(read_release(run)).html
