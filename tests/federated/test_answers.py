"""The store of answers, in both modes: what counts, what is refused and logged, what survives the server."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from critic_rounds import critic_plan
from rounds import people, small_plan

from gswgan.errors import RunError, StorageError
from gswgan.federated import answers as module
from gswgan.federated.answers import Answers, known_nodes
from gswgan.federated.messages import answer, pack, shape_of
from gswgan.federated.server import create_run
from gswgan.plan.plan import Plan
from gswgan.privacy.mechanism import GRID_BITS
from gswgan.run.folder import RunFolder

DATA = people()
BAD, GOOD = "person 03", "person 04"
UNIT = 2**GRID_BITS
MODES = {"one round": (small_plan(DATA), None), "Algorithm 2": (critic_plan(rounds=3, epsilon=10), 1)}


@dataclass
class Held:
    """A run, one question of which is open."""

    folder: RunFolder
    plan: Plan
    number: int | None

    @property
    def key(self) -> str:
        return "sums" if self.number is None else "block"

    def store(self) -> Answers:
        """As a server finds it that has just started."""
        return Answers(self.folder, self.plan, DATA.person_ids, known_nodes(self.folder), self.number)

    def honest(self, client: str, seed: int = 0) -> dict[str, Any]:
        grid = np.random.default_rng(seed).integers(-9, 9, shape_of(self.plan))
        return dict(answer(client, self.plan, pack(grid, self.plan), self.number))

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder.private / "answers.jsonl").read_text().splitlines()]


@pytest.fixture(params=MODES)
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Held:
    plan, number = MODES[request.param]
    return Held(create_run(tmp_path / "run", plan, DATA.person_ids, 600), plan, number)


def last_row(shape: tuple[int, int], *values: int) -> bytes:
    grid = np.zeros(shape, "<i4")
    grid[-1, : len(values)] = values
    return grid.tobytes()


NUMBERS: dict[str, Any] = {
    "NaN": lambda shape: np.full(shape, np.nan, np.float32).tobytes(),
    "infinity": lambda shape: np.full(shape, np.inf, np.float32).tobytes(),
    "NaN in float64": lambda shape: np.full(shape, np.nan).tobytes(),
    "too short": lambda shape: bytes(4 * math.prod(shape) - 4),
    "too long": lambda shape: bytes(4 * math.prod(shape) + 4),
    "nothing": lambda shape: b"",
    "text": lambda shape: "x" * 4 * math.prod(shape),
    "no bytes": lambda shape: None,
    "a row beyond the clip norm": lambda shape: last_row(shape, UNIT, 1),
    "one step beyond the clip norm": lambda shape: last_row(shape, UNIT + 1),
    "squares that overflow": lambda shape: last_row(shape, *[2**30] * 16),  # 16 x 2^60 = 2^64, which is 0 in 64 bits
    "the smallest integer": lambda shape: np.full(shape, -(2**31), "<i4").tobytes(),
}
OTHERS: dict[str, dict[str, Any]] = {
    "another plan": {"plan": "0" * 64},
    "no plan": {"plan": None},
    "a stranger": {"client": "a stranger"},
    "no client": {"client": 7},
    "a refusal": {"refused": "no more"},
    "a replayed round": {"round": "0"},
    "no round": {"round": None},
}


@pytest.mark.parametrize("what", [*NUMBERS, *OTHERS])
def test_a_wrong_answer_counts_as_no_answer_and_is_logged(held: Held, what: str):
    if "round" in what and held.number is None:
        pytest.skip("there is one round")
    store, sent = held.store(), held.honest(BAD)
    sent |= OTHERS[what] if what in OTHERS else {held.key: NUMBERS[what](shape_of(held.plan))}
    assert store.take(sent, node=1, down=5, up=6) is not None
    (row,) = held.log()
    assert ("refused" in row, row["down"], row["up"], row.get("round")) == (True, 5, 6, held.number)
    assert store.take(held.honest(GOOD), node=2) is None
    store.close()
    assert [grid.tolist() for grid in store.counted()] == [unpacked(held.honest(GOOD)[held.key], held.plan)]
    assert list(store.digests) == [GOOD]


def unpacked(raw: bytes, plan: Plan) -> list[list[int]]:
    return np.frombuffer(raw, "<i4").reshape(shape_of(plan)).tolist()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_first_answer_of_a_client_counts_also_after_a_restart(held: Held, seed: int):
    store = held.store()
    assert store.take(held.honest(BAD), node=1) is None
    kept = store.path_of(BAD).read_bytes()
    for again in (store, held.store()):
        assert again.take(held.honest(BAD, seed), node=1) is not None
        assert again.digests == store.digests
    assert store.path_of(BAD).read_bytes() == kept == held.honest(BAD)[held.key]
    assert store.path_of(BAD).stat().st_mode & 0o077 == store.place.stat().st_mode & 0o077 == 0
    with (held.folder.private / "answers.jsonl").open("a") as log:
        log.write('{"torn')  # the server died while it wrote
    assert list(held.store().digests) == [BAD]


def test_a_node_answers_for_one_client_also_after_a_restart(held: Held):
    store = held.store()
    assert store.take(held.honest(GOOD), node=7) is None
    for again in (store, held.store()):
        assert "answered before" in str(again.take(held.honest(BAD), node=7))
    assert store.take(held.honest(BAD), node=8) is None


def test_late_answers_are_refused(held: Held, monkeypatch: pytest.MonkeyPatch):
    store = held.store()
    store.deadline = 1000.0
    monkeypatch.setattr(module.time, "time", lambda: 999.0)
    assert store.take(held.honest(GOOD), node=1) is None
    monkeypatch.setattr(module.time, "time", lambda: 1000.0)
    assert "late" in str(store.take(held.honest(BAD), node=2))
    monkeypatch.setattr(module.time, "time", lambda: 999.0)
    store.close()
    for again in (store, held.store()):
        assert "late" in str(again.take(held.honest(BAD), node=2))
        assert list(again.digests) == [GOOD]


def test_an_answer_that_changed_on_the_servers_disk_is_found(held: Held):
    store = held.store()
    store.take(held.honest(BAD), node=1)
    store.close()
    store.path_of(BAD).write_bytes(held.honest(BAD, seed=1)[held.key])
    with pytest.raises(RunError, match="the answer that was taken"):
        list(store.counted())


@pytest.mark.timeout(120)  # a pipe without a writer must not be waited for
def test_pipes_links_and_large_files_are_no_answers(held: Held, tmp_path: Path):
    path = held.store().path_of(BAD)
    (tmp_path / "target").write_bytes(b"secret")

    def large() -> None:
        with path.open("wb") as file:
            file.truncate(2**40)

    for plant, why in (
        (lambda: os.mkfifo(path), "a named pipe"),
        (lambda: path.symlink_to(tmp_path / "target"), "a symbolic link"),
        (large, "at most"),
    ):
        plant()
        with pytest.raises(StorageError, match=why):
            held.store()
        path.unlink()
    assert (tmp_path / "target").read_bytes() == b"secret"


def test_answers_that_cannot_be_removed_are_an_error(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    store = held.store()
    store.deadline = math.inf
    assert store.take(held.honest(GOOD), node=1, down=1, up=1) is None

    def fails(*arguments: Any, **options: Any) -> None:
        raise PermissionError("read-only")

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", fails)
        with pytest.raises(PermissionError):
            store.remove()
    assert store.path_of(GOOD).exists()
    store.remove()
    assert not store.place.exists()
    store.remove()  # nothing is left to remove
