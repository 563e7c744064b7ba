"""The benchmark whole, on stripes: what it finishes, what it goes on with, what it states."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("jinja2", reason="needs the extra gswgan[eval]")
pytest.importorskip("matplotlib", reason="needs the extra gswgan[eval]")

from small_benchmarks import QUICK, SETS, TEST, TRAIN, generators, make_small, renamed

from conftest import tiny_images
from gswgan.benchmark import run as runner
from gswgan.benchmark.run import benchmark
from gswgan.cli.main import app
from gswgan.errors import DataError, PlanError
from gswgan.methods import make_plan
from gswgan.run import loop
from gswgan.run.folder import RunFolder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    return make_small(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A finished benchmark, made once."""
    said: list[str] = []
    root = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_small(monkeypatch)
        found = benchmark(
            SETS, out=root, methods=["kernel", "gswgan:paper", "dp-merf", "gan"], epsilons=[10, 5],
            seeds=[1, 2], note=said.append, **QUICK,
        )  # fmt: skip
    assert [line for line in said if "FAILED" in line] == []
    return root, found


def test_every_line_states_what_its_runs_state(whole: tuple[Path, dict]) -> None:
    root, found = whole
    lines = [(row["name"], row["asked_epsilon"]) for row in found["rows"]]
    assert lines == [("gswgan:kernel", 5), ("gswgan:kernel", 10), ("gswgan:paper", None), ("dp-merf", 5),
                     ("dp-merf", 10), ("gan", None)]  # fmt: skip
    for row in found["rows"]:
        assert list(row["runs"]) == ["1", "2"]
        for seed, path in row["runs"].items():
            folder = RunFolder(root / path)
            assert folder.plan().seed == int(seed)
            stated = json.loads(folder.privacy.read_text())
            if row["name"] == "gan":
                assert row["privacy"] is None
                assert "WITHOUT differential privacy" in row["void"]
                continue
            assert {name: stated[name] for name in row["privacy"]} == row["privacy"]
            assert (row["privacy"]["neighbours"], row["privacy"]["observer"]) == ("replace-one", "public")
            if row["asked_epsilon"] is not None:
                assert row["asked_epsilon"] * 0.999 < row["privacy"]["epsilon"] <= row["asked_epsilon"]
            assert row["claimed"] == (None if stated["claimed"] is None else stated["claimed"]["epsilon"])
    paper = found["rows"][2]
    assert paper["claimed"] < paper["privacy"]["epsilon"]


def test_figures_are_means_over_the_runs(whole: tuple[Path, dict]) -> None:
    root, found = whole
    for row in found["rows"]:
        measured = {seed: json.loads((root / path / "private" / "evaluation.json").read_text())["values"]
                    for seed, path in row["runs"].items()}  # fmt: skip
        for name in ("gaussian_nb", "lda"):
            values = [measured[seed][f"classifiers.{name}"][seed] for seed in ("1", "2")]
            entry = row["classifiers"][name]
            assert entry["mean"] == pytest.approx(np.mean(values))
            assert entry["std"] == pytest.approx(np.std(values, ddof=1))
            assert entry["calibrated"] == pytest.approx(np.mean(values) / found["real"]["stripes"][name])
        each = [np.mean([measured[seed][f"classifiers.{name}"][seed] for name in ("gaussian_nb", "lda")])
                for seed in ("1", "2")]  # fmt: skip
        assert row["average_accuracy"]["mean"] == pytest.approx(np.mean(each))
        assert row["inception_score"]["seeds"] == 2
        assert row["train_seconds"] > 0
        assert row["peak_memory"] > 2**20
    curve = found["curves"]["stripes"]["inception_score"]
    assert list(curve) == ["gswgan:kernel", "gswgan:paper", "dp-merf"]  # without a guarantee there is no epsilon
    assert [point[0] for point in curve["dp-merf"]] == pytest.approx([5, 10], rel=1e-3)
    assert curve["dp-merf"][1][1] == found["rows"][4]["inception_score"]["mean"]


def test_tables_page_and_files(whole: tuple[Path, dict]) -> None:
    root, found = whole
    assert json.loads((root / "benchmark.json").read_text()) == found
    text, page = (root / "benchmark.md").read_text(), (root / "report.html").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| gan")]
    assert len(lines) == 1
    assert "| NONE |" in lines[0]
    assert "replace-one (record)" in text
    assert "at delta 0.00001" in text
    assert "| FID" not in text
    assert "at epsilon 10" in text
    for shown in (text, page):
        assert "PRIVATE" in shown
        assert "FID is left out" in shown
        assert "WITHOUT differential privacy" in shown
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert page.count("<article>") == 4
    assert {path.name for path in (root / "figures").iterdir()} == {
        "curves-1.png", "curves-1.svg", "samples.png", "samples.svg"
    }  # fmt: skip
    for path in (root / "report.html", root / "benchmark.json", root / "benchmark.md", root / "figures/samples.png"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_public_data_may_be_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checksums: list[str] = []
    monkeypatch.setattr(runner, "is_public", lambda checksum: checksums.append(checksum) or True)
    found = benchmark(SETS, out=tmp_path, methods=["kernel"], **QUICK)
    assert len(set(checksums)) == 2  # of both parts
    assert found["public"]
    assert "PRIVATE" not in (tmp_path / "report.html").read_text() + (tmp_path / "benchmark.md").read_text()
    monkeypatch.setattr(runner, "is_public", lambda checksum: checksum == checksums[0])
    assert not benchmark(SETS, out=tmp_path, methods=["kernel"], **QUICK)["public"]


def test_names_that_look_like_markup(tmp_path: Path) -> None:
    data = [(renamed(part, "<script>x</script>|y"), renamed(part, "t")) for part in (TRAIN,)]
    benchmark(data, out=tmp_path, methods=["kernel"], **QUICK)
    assert "<script>" not in (tmp_path / "report.html").read_text()
    assert "<script>" not in (tmp_path / "benchmark.md").read_text().replace("\\<script\\>", "")
    rows = [line for line in (tmp_path / "benchmark.md").read_text().splitlines() if line.startswith("| gswgan")]
    assert rows[0].count(" | ") == 8


def test_two_data_sets_are_two_columns(tmp_path: Path) -> None:
    other = renamed(tiny_images(seed=2), "others")
    found = benchmark([*SETS, (other, TEST)], out=tmp_path, methods=["kernel"], **QUICK)
    assert list(found["real"]) == ["stripes", "others"]
    assert {path.name for path in (tmp_path / "figures").glob("*.svg")} == {
        "curves-1.svg", "curves-2.svg", "samples.svg"
    }  # fmt: skip
    with pytest.raises(DataError, match="different names"):
        benchmark([*SETS, *SETS], out=tmp_path, methods=["kernel"], **QUICK)


def test_a_finished_cell_is_never_run_again(whole: tuple[Path, dict], monkeypatch: pytest.MonkeyPatch, small) -> None:
    root, found = whole
    before = generators(root)

    def never(*args: object, **options: object) -> None:
        raise AssertionError("again")

    for name in ("evaluate", "make_plan"):
        monkeypatch.setattr(runner, name, never)
    monkeypatch.setattr(loop, "run", never)
    again = benchmark(
        SETS, out=root, methods=["kernel", "gswgan:paper", "dp-merf", "gan"], epsilons=[10, 5], seeds=[1, 2], **QUICK
    )
    assert again == found
    assert generators(root) == before


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, part in (("stripes", TRAIN), ("held", TEST)):
        np.savez(tmp_path / f"{name}.npz", images=part.images[:, 0], labels=part.labels)
    monkeypatch.chdir(tmp_path)
    call = ["benchmark", "--data", "stripes.npz", "--test-data", "held.npz", "--classes", "3", "--methods",
            "kernel,gan", "--epsilon", "3,10", "--samples", "60", "--classifiers", "lda", "--out", "out",
            "--device", "cpu"]  # fmt: skip
    threads = torch.get_num_threads()
    done = CliRunner().invoke(app, call)
    torch.set_num_threads(threads)
    assert done.exit_code == 0, done.output
    assert "PRIVATE" in done.output
    assert (tmp_path / "out" / "report.html").is_file()
    found = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    assert [row["asked_epsilon"] for row in found["rows"]] == [3, 10, None]
    wrong = CliRunner().invoke(app, [*call, "--epsilon", "three"])
    assert isinstance(wrong.exception, PlanError)
    assert "PRIVATE unless the data is public" in " ".join(
        re.sub(r"[^\w ]", " ", CliRunner().invoke(app, ["benchmark", "--help"]).output).split()
    )


def test_data_is_read_as_it_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 bits in 16, persons from a table: for the held-out part too, where it concerns it."""
    for name, part in (("deep", TRAIN), ("held", TEST)):
        np.savez(tmp_path / f"{name}.npz", images=part.images[:, 0].astype(np.uint16) * 16, labels=part.labels)
    rows = "".join(f"{index},p{index // 2}\n" for index in range(TRAIN.n))
    (tmp_path / "persons.csv").write_text(f"index,person\n{rows}")
    monkeypatch.chdir(tmp_path)
    given: list = []

    def stop(sets, **_) -> None:
        given.extend(sets)
        raise DataError("test", "read", "nothing more")

    monkeypatch.setattr(runner, "benchmark", stop)
    call = ["benchmark", "--data", "deep.npz", "--test-data", "held.npz", "--classes", "3", "--pixel-range", "0:4080",
            "--group-by", "persons.csv", "--device", "cpu", "--out", "out"]  # fmt: skip
    assert "test = 'read'" in str(CliRunner().invoke(app, call).exception)
    ((train, test),) = given
    assert (train.images == TRAIN.images).all()
    assert (test.images == TEST.images).all()
    assert (train.number_of_persons, test.persons) == (TRAIN.n // 2, None)
    two = CliRunner().invoke(app, ["benchmark", "--data", "digits", *call[1:3], "--pixel-range", "0:1", "--out", "out"])
    assert "a single one with --pixel-range" in str(two.exception)


def test_nothing_is_spent_on_too_few_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "make_plan", make_plan)
    few = dataclasses.replace(TRAIN, images=TRAIN.images[:9], labels=TRAIN.labels[:9])  # type: ignore[index]
    found = benchmark([(few, TEST)], out=tmp_path / "out", methods=["kernel"], epsilons=[10.0], **QUICK)
    (wrong,) = found["failed"].values()
    assert re.search(r"records = 9: expected at least \d+ for 3 classes at epsilon 10", wrong)
    assert "--force-spend" not in wrong  # which this command does not have
    assert list((tmp_path / "out").rglob("ledger.jsonl")) == []


def test_a_failure_shows_in_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "make_plan", lambda facts, **options: 1 / 0)
    done = CliRunner().invoke(app, ["benchmark", "--methods", "gan", "--out", str(tmp_path / "x"), "--device", "cpu"])
    assert done.exit_code == 1
    assert "ZeroDivisionError" in done.output


def test_ctrl_c_stops_and_says_so(tmp_path: Path) -> None:
    def stop(what: str, done: float, total: float) -> None:
        if "step 2" in what:
            os.kill(os.getpid(), 2)

    with pytest.raises(KeyboardInterrupt):
        benchmark(SETS, out=tmp_path, methods=["kernel"], progress=stop, **QUICK)
    assert benchmark(SETS, out=tmp_path, methods=["kernel"], **QUICK)["failed"] == {}
