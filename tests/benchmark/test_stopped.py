"""A benchmark that is killed, fails in part, or is asked for more: finished work is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="needs the extra gswgan[eval]")
pytest.importorskip("matplotlib", reason="needs the extra gswgan[eval]")

from small_benchmarks import QUICK, SETS, TEST, TRAIN, Killed, generators, make_small, renamed

from conftest import tiny_images
from gswgan.benchmark import run as runner
from gswgan.benchmark.run import benchmark
from gswgan.errors import GswganError, RunError
from gswgan.run import loop


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    return make_small(monkeypatch)


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
    other = renamed(tiny_images(seed=5), TRAIN.name)
    with pytest.raises(RunError, match="trained on"):
        benchmark([(other, TEST)], out=tmp_path, methods=["kernel"], **QUICK)


@pytest.mark.parametrize(
    "wrong", [{"epsilons": []}, {"epsilons": [0]}, {"seeds": []}, {"samples": 5}, {"classifiers": ("none",)}]
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(wrong: dict, tmp_path: Path, small) -> None:
    with pytest.raises(GswganError):
        benchmark(SETS, out=tmp_path / "out", **{"methods": ["kernel"], **QUICK, **wrong})
    assert small == []
