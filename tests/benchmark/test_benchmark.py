"""The benchmark whole, on stripes: what it finishes, what it goes on with, what it states."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("jinja2", reason="needs the extra gswgan[eval]")
pytest.importorskip("matplotlib", reason="needs the extra gswgan[eval]")

from conftest import tiny_baseline, tiny_images, tiny_plan
from gswgan.benchmark import clock as clocks
from gswgan.benchmark import run as runner
from gswgan.benchmark.cells import Cell, Entry, find_entries, make_cells
from gswgan.benchmark.clock import Clock, PeakMemory
from gswgan.benchmark.run import benchmark
from gswgan.cli.main import app
from gswgan.data import ImageData
from gswgan.errors import DataError, GswganError, PlanError, RunError
from gswgan.evaluation.metrics import EvaluationSetup
from gswgan.methods import METHODS
from gswgan.run import loop
from gswgan.run.folder import RunFolder

TRAIN, TEST = tiny_images(), tiny_images(60, seed=1)
SETS = [(TRAIN, TEST)]
QUICK = {"samples": 60, "classifiers": ("gaussian_nb", "lda"), "device": "cpu"}


class Killed(BaseException):
    """What `kill -9` leaves behind, without the process: no `except` clause runs."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    return make_small(monkeypatch)


def make_small(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Tiny plans, and a classifier that costs nothing; returns the plans that were asked for."""
    asked: list[dict] = []

    def plan(facts, *, method: str, preset: str, device: str, **options):
        asked.append({"method": method, "preset": preset, **options})
        data = TRAIN if facts.data == TRAIN.name else tiny_images(seed=2)
        if method == "gswgan":
            return tiny_plan(data, preset=preset, **options)
        return tiny_baseline(data, method, preset=preset, **options)

    monkeypatch.setattr(runner, "make_plan", plan)

    def probabilities(images: np.ndarray) -> np.ndarray:
        return np.eye(3)[images[:, 0, :3].mean(axis=2).argmax(axis=1)] * 0.97 + 0.01

    monkeypatch.setattr(EvaluationSetup, "classifier", lambda self, tick: SimpleNamespace(probabilities=probabilities))
    return asked


def generators(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("generator.safetensors")}


# --- entries and cells


def test_all_is_both_of_gs_wgan_and_every_baseline() -> None:
    names = [entry.name for entry in find_entries(["all"])]
    assert names == ["gswgan:kernel", "gswgan:ensemble", *(name for name in METHODS if name != "gswgan")]
    assert [entry.name for entry in find_entries(["ensemble", "gan", "all"])][:2] == ["gswgan:ensemble", "gan"]
    assert len(find_entries(["all", "gswgan", "kernel", "gan"])) == len(names)


def test_a_preset_is_asked_for_with_its_method() -> None:
    paper, cgan = find_entries(["gswgan:paper", "dp-sgd-gan:dp-cgan"])
    assert (paper.method, paper.preset, paper.calibrated) == ("gswgan", "paper", False)
    assert (cgan.name, cgan.calibrated) == ("dp-sgd-gan:dp-cgan", False)
    assert find_entries(["dp-sgd-gan:revisited"])[0].name == "dp-sgd-gan"
    for wrong in ("paper", "gswgan:nothing", "dp-merf:", "nothing", ""):
        if wrong != "dp-merf:":
            with pytest.raises(PlanError, match="methods"):
                find_entries([wrong])
    with pytest.raises(PlanError, match="at least one"):
        find_entries([])


def test_what_is_not_calibrated_appears_once() -> None:
    entries = find_entries(["kernel", "gswgan:paper", "gan"])
    cells = make_cells(["digits"], entries, [1.0, 10.0], [1, 2])
    assert [(cell.entry.name, cell.epsilon) for cell in cells if cell.seed == 1] == [
        ("gswgan:kernel", 1.0), ("gswgan:kernel", 10.0), ("gswgan:paper", None), ("gan", None),
    ]  # fmt: skip
    assert len(cells) == 8
    assert [cell.seed for cell in cells] == [1] * 4 + [2] * 4
    assert len({cell.folder(Path("x")) for cell in cells}) == 8
    odd = Cell(data="a/../b c", entry=entries[0], epsilon=0.5, seed=1).folder(Path("x"))
    assert odd.parts[:3] == ("x", "runs", "a-..-b-c")


# --- whole


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
    data = [(make(part, "<script>x</script>|y"), make(part, "t")) for part in (TRAIN,)]
    benchmark(data, out=tmp_path, methods=["kernel"], **QUICK)
    assert "<script>" not in (tmp_path / "report.html").read_text()
    assert "<script>" not in (tmp_path / "benchmark.md").read_text().replace("\\<script\\>", "")
    rows = [line for line in (tmp_path / "benchmark.md").read_text().splitlines() if line.startswith("| gswgan")]
    assert rows[0].count(" | ") == 8


def make(data: ImageData, name: str) -> ImageData:
    import dataclasses

    return dataclasses.replace(data, name=name)


def test_two_data_sets_are_two_columns(tmp_path: Path) -> None:
    other = make(tiny_images(seed=2), "others")
    found = benchmark([*SETS, (other, TEST)], out=tmp_path, methods=["kernel"], **QUICK)
    assert list(found["real"]) == ["stripes", "others"]
    assert {path.name for path in (tmp_path / "figures").glob("*.svg")} == {
        "curves-1.svg", "curves-2.svg", "samples.svg"
    }  # fmt: skip
    with pytest.raises(DataError, match="different names"):
        benchmark([*SETS, *SETS], out=tmp_path, methods=["kernel"], **QUICK)


# --- stopped, failed, asked again


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


@pytest.mark.parametrize("method", ["kernel", "dp-sgd-gan"])
def test_a_killed_benchmark_goes_on(method: str, tmp_path: Path, small: list[dict]) -> None:
    """In the second cell's training: the first stays as it is, the second goes on with its own plan and key."""
    options = {"methods": [method], "epsilons": [10], "seeds": [1, 2], **QUICK}

    def kill(what: str, done: float, total: float) -> None:
        if "seed 2: step 3" in what:
            raise Killed

    with pytest.raises(Killed):
        benchmark(SETS, out=tmp_path, progress=kill, **options)
    before, planned = generators(tmp_path), len(small)
    (second,) = [path.parent.parent for path in tmp_path.rglob("key.json")]
    key = (second / "private" / "key.json").read_bytes()
    lines = (second / "release" / "ledger.jsonl").read_text().splitlines()
    assert (len(before), planned) == (1, 2)
    seen: list[bytes] = []

    def look(what: str, done: float, total: float) -> None:
        assert "seed 1" not in what
        if (second / "private" / "key.json").exists():
            seen.append((second / "private" / "key.json").read_bytes())

    found = benchmark(SETS, out=tmp_path, progress=look, **options)
    assert set(seen) == {key}
    assert len(small) == planned
    assert (second / "release" / "ledger.jsonl").read_text().splitlines()[: len(lines)] == lines
    assert {name: generators(tmp_path)[name] for name in before} == before
    assert found["failed"] == {}
    assert list(found["rows"][0]["runs"]) == ["1", "2"]
    assert json.loads((second / "private" / "benchmark.json").read_text())["sessions"] == 2


def test_killed_after_the_training_and_before_it_was_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"methods": ["kernel"], **QUICK}
    real = loop.run

    def then_die(*args: object, **more: object) -> bool:
        assert real(*args, **more)
        raise Killed

    monkeypatch.setattr(loop, "run", then_die)
    with pytest.raises(Killed):
        benchmark(SETS, out=tmp_path, **options)
    monkeypatch.setattr(loop, "run", real)
    before = generators(tmp_path)
    found = benchmark(SETS, out=tmp_path, **options)
    assert (len(before), found["failed"]) == (1, {})
    assert generators(tmp_path) == before


def test_killed_while_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(what: str, done: float, total: float) -> None:
        if "lda, seed" in what:
            raise Killed

    with pytest.raises(Killed):
        benchmark(SETS, out=tmp_path, methods=["kernel"], progress=kill, **QUICK)
    before = generators(tmp_path)
    seen: list[str] = []
    benchmark(SETS, out=tmp_path, methods=["kernel"], progress=lambda what, done, total: seen.append(what), **QUICK)
    assert generators(tmp_path) == before
    assert not any("step" in what or "gaussian_nb, seed" in what for what in seen)
    assert any("lda, seed" in what for what in seen)


def test_one_failure_does_not_stop_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small) -> None:
    real, said = runner.make_plan, []

    def fails(facts, **options):
        if options["method"] == "dp-merf":
            raise MemoryError("no room for features")
        return real(facts, **options)

    monkeypatch.setattr(runner, "make_plan", fails)
    options = {"methods": ["dp-merf", "kernel"], **QUICK}
    found = benchmark(SETS, out=tmp_path, note=said.append, **options)
    bad, good = found["rows"]
    assert bad["failed"] == {"1": "MemoryError: no room for features"}
    assert (bad["privacy"], bad["average_accuracy"], bad["runs"]) == (None, None, {})
    assert good["average_accuracy"]["seeds"] == 1
    text = (tmp_path / "benchmark.md").read_text()
    assert "FAILED" in text
    assert "no room for features" in text
    assert "no room for features" in (tmp_path / "report.html").read_text()
    assert any(line.startswith("[1/2]") and "FAILED" in line for line in said)
    monkeypatch.setattr(runner, "make_plan", real)
    assert benchmark(SETS, out=tmp_path, **options)["failed"] == {}  # it is tried again


def test_more_classifiers_are_measured_on_the_same_runs(tmp_path: Path) -> None:
    benchmark(SETS, out=tmp_path, methods=["kernel"], **QUICK)
    before, seen = generators(tmp_path), []
    more = QUICK | {"classifiers": ("gaussian_nb", "lda", "bernoulli_nb")}
    found = benchmark(SETS, out=tmp_path, methods=["kernel"], progress=lambda what, *_: seen.append(what), **more)
    assert list(found["rows"][0]["classifiers"]) == ["gaussian_nb", "lda", "bernoulli_nb"]
    assert generators(tmp_path) == before
    assert not any("lda, seed" in what for what in seen)
    fewer = benchmark(SETS, out=tmp_path, methods=["kernel"], **QUICK | {"classifiers": ("lda",)})
    assert list(fewer["rows"][0]["classifiers"]) == ["lda"]
    assert fewer["rows"][0]["average_accuracy"]["mean"] == fewer["rows"][0]["classifiers"]["lda"]["mean"]


def test_other_data_of_the_same_name_is_refused(tmp_path: Path) -> None:
    benchmark(SETS, out=tmp_path, methods=["kernel"], **QUICK)
    other = make(tiny_images(seed=5), TRAIN.name)
    with pytest.raises(RunError, match="trained on"):
        benchmark([(other, TEST)], out=tmp_path, methods=["kernel"], **QUICK)


@pytest.mark.parametrize(
    "wrong", [{"epsilons": []}, {"epsilons": [0]}, {"seeds": []}, {"samples": 5}, {"classifiers": ("none",)}]
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(wrong: dict, tmp_path: Path, small) -> None:
    with pytest.raises(GswganError):
        benchmark(SETS, out=tmp_path / "out", **{"methods": ["kernel"], **QUICK, **wrong})
    assert small == []


# --- time and memory


def test_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(clocks.time, "monotonic", lambda: now)
    one, two = Entry(method="gan", preset="default"), Entry(method="g-pate", preset="default")
    cells = [Cell(data="x", entry=entry, epsilon=None, seed=seed) for entry in (one, two) for seed in (1, 2)]
    told: list[tuple[str, float, float]] = []
    clock = Clock({cells[0]: 7.0, **dict.fromkeys(cells[1:])}, lambda *what: told.append(what))
    clock.skip(cells[0])
    assert clock.left() == 21  # as the one that is known
    clock.start(cells[2])
    now = 20.0
    clock.report("step", 0.5)
    assert told[-1][1:] == (20.0, 34.0)  # it is late; the two others take 7 each
    assert clock.stop(failed=False) == 20.0
    assert clock.left() == 27  # 7 of its own kind, 20 of its own kind
    first = Clock(dict.fromkeys(cells), lambda *what: told.append(what))
    first.start(cells[0])
    now = 30.0
    first.report("step", 0.5)
    assert told[-1][1:] == (10.0, 80.0)  # it seems to take 20 s, and so the others
    first.stop(failed=True)
    assert first.left() == 0  # nothing is known


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells it")
def test_peak_memory_starts_anew() -> None:
    peak = PeakMemory(torch.device("cpu"))
    low = peak.read()
    big = np.ones(2**25)  # 256 MiB
    high = peak.read()
    assert high - low > 200 * 2**20
    del big
    assert peak.read() > high - 2**23  # what was stays; the kernel counts roughly
    assert PeakMemory(torch.device("cpu")).read() < high - 200 * 2**20


# --- the command


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
