"""What one unit adds to a sum is the same to the last bit whoever else is in it, and wherever the unit stands.

Otherwise its coin, or its place, would move other units' rows. Every method and preset with a guarantee, wired as a run
wires it; who takes part is chosen here, and what is released does not depend on it, so that all runs have one history.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import tiny_images
from contracts.wiring import CASES, Case, Enough, by_person, plan_of, planned
from gswgan.critics.dp_sgd import RecordGradients
from gswgan.critics.kernel import streaming
from gswgan.data import ImageData, open_stream
from gswgan.plan.plan import Plan
from gswgan.privacy import Gaussian, GaussianMechanism
from gswgan.privacy.mechanism import Answer
from gswgan.privacy.randomness import create_key
from gswgan.run import loop
from gswgan.run.folder import RunFolder
from many_files import write_npz
from vgg_weights import install

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
RELEASES = 9


@functools.cache
def images(n: int, side: int = 8) -> ImageData:
    return tiny_images(n, side=side)


def _wider(width: int, **critic: Any) -> Callable[[Plan], Plan]:
    """As wide as a run has it, with few random features."""

    def small(plan: Plan) -> Plan:
        embedding = dataclasses.replace(plan.critic.embedding, features=64)
        generator = dataclasses.replace(plan.generator, width=width)
        return dataclasses.replace(
            plan, generator=generator, critic=dataclasses.replace(plan.critic, embedding=embedding, **critic)
        )

    return small


def _with(name: str, data: Callable[[], ImageData], **changes: Any) -> Case:
    return dataclasses.replace(CASES[name], data=data, **changes)


SOME, LARGE, CRITICS = (lambda: images(290)), (lambda: images(50, 28)), {"critics": 29, "steps": 4}
PLACED = {
    "refined by person": _with("refined by person", by_person),
    "ensemble": _with("ensemble", SOME, options={**CRITICS, "preset": "ensemble"}),
    "ensemble-alone": _with("ensemble-alone", SOME, options={**CRITICS, "preset": "ensemble-alone"}),
    "paper": _with("paper", SOME, options={**CRITICS, "preset": "paper"}),
    "dp-merf paper": _with("dp-merf paper", lambda: images(700)),
    "dp-merf-ae": _with("dp-merf-ae", SOME, small=_wider(8)),
    "dp-merf-ae, larger images": _with("dp-merf-ae", LARGE, small=_wider(16)),
    "dp-merf-ae paper": _with("dp-merf-ae paper", lambda: images(520), small=_wider(8)),
    "dp-sgd-gan revisited": _with("dp-sgd-gan revisited", SOME),
    "dp-sgd-gan dp-cgan": _with("dp-sgd-gan dp-cgan", lambda: images(640)),
    "fed-avg-gan": _with("fed-avg-gan", by_person),
}


@functools.cache
def plan_placed(name: str) -> Plan:
    return planned(PLACED[name])


Rows = dict[str, dict[int, Tensor]]
"""By release and unit."""


def released_by_name(name: str, slots: int, width: int, counts: bool) -> Answer:
    """Something that depends on nothing but the name."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    sums = np.random.default_rng(seed).normal(size=(slots, width)) + 1000.0 * (name == "embedding")  # with counts
    return Answer(sums=sums, counts=np.full(slots, 1000.0) if counts else None)


def rows_of(plan: Plan, data: ImageData, root: Path, device: str, members: Callable[[int], np.ndarray]) -> Rows:
    """The rows of the first releases of a run in which `members` of so many units take part."""
    found: Rows = {}

    def release(self: GaussianMechanism, name: str, blocks: Any, *, slots: int, width: int) -> Answer:
        if len(found) == RELEASES:
            raise Enough
        rows = torch.cat([rows.reshape(len(rows), -1).cpu() for rows, _ in blocks])
        everybody = np.arange(data.number_of_persons or data.n) if isinstance(self.event, Gaussian) else taking_part[-1]
        assert len(rows) == len(everybody)
        found[name] = dict(zip(everybody.tolist(), rows.clone()))
        return released_by_name(name, slots, width, self.contribution.counts)

    taking_part: list[np.ndarray] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianMechanism, "answer", release)
        chosen = lambda self, name, count: (taking_part.append(members(count)), taking_part[-1])[1]  # noqa: E731
        patch.setattr(GaussianMechanism, "participants", chosen)
        where = torch.device(device)
        folder = RunFolder.create(root, plan)
        create_key(folder.key, plan.digest(), secret=bytes(32))
        critic = loop.make_critic(plan, folder, data, where)
        try:
            critic.prepare(data)
            loop.train(plan, critic, loop.make_generator(plan, where))
        except Enough:
            pass
    return found


def check_places(plan: Plan, data: ImageData, root: Path, device: str) -> None:
    """Everybody, everybody but one, every second one, a few; and one alone."""
    rng = np.random.default_rng(0)
    shares = rng.random(4096)
    sets: list[Callable[[int], np.ndarray]] = [
        np.arange,
        lambda count: np.arange(1, count),
        lambda count: np.arange(0, count, 2),
        lambda count: np.flatnonzero(shares[:count] < 0.3),
        lambda count: np.array([count // 2]),
    ]
    runs = [rows_of(plan, data, root / str(number), device, members) for number, members in enumerate(sets)]
    whole = runs[0]
    assert len(whole) >= 2
    for run in runs[1:]:
        assert run.keys() == whole.keys()
        for name, rows in run.items():
            moved = [unit for unit, row in rows.items() if not torch.equal(row, whole[name][unit])]
            assert not moved, f"{name}: {len(moved)} of {len(rows)} rows depend on who else takes part"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PLACED)
def test_a_row_is_the_same_whoever_takes_part(name: str, device: str, tmp_path: Path) -> None:
    """With three threads: PyTorch rounds otherwise where the part of one of them ends."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        check_places(plan_placed(name), PLACED[name].data(), tmp_path, device)
    finally:
        torch.set_num_threads(before)


def permuted(data: ImageData, order: np.ndarray) -> ImageData:
    return dataclasses.replace(data, images=data.images[order], labels=data.labels[order])


EMBEDDED = {
    "kernel": {},
    "kernel, averages": {"pooled": 3},
    "kernel, convolutions": {"convolutions": (6, 10), "pooled": 2},
    "kernel, VGG19": {"public_network": "vgg19"},
    "dp-merf": {},
    "dp-merf-ae": {},
}
"""What the critic is changed to, by method and what is special."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", EMBEDDED)
def test_where_everybody_takes_part_a_row_does_not_depend_on_its_place(
    name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    method = name.partition(",")[0]
    plan, data = plan_of(method), CASES[method].data()
    plan = dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, **EMBEDDED[name]))
    order = np.random.default_rng(0).permutation(data.n)
    rows = []
    for number, one in enumerate((data, permuted(data, order))):
        found = rows_of(plan, one, tmp_path / str(number), device, lambda count: np.arange(1))
        rows.append(found["embedding"])
    assert all(torch.equal(rows[1][place], rows[0][record]) for place, record in enumerate(order.tolist()))


def test_in_a_stream_a_row_does_not_depend_on_its_place(tmp_path: Path, monkeypatch) -> None:
    data, order = images(290), np.random.default_rng(0).permutation(290)
    seen: list[Tensor] = []
    clipped_sum = streaming.clipped_sum

    def watch(blocks: Any, *arguments: Any, **options: Any) -> Any:
        blocks = list(blocks)
        seen.extend(rows[:, 0].clone() for rows, _ in blocks)
        return clipped_sum(blocks, *arguments, **options)

    monkeypatch.setattr(streaming, "clipped_sum", watch)
    found = []
    for number, (one, files) in enumerate(((data, 3), (permuted(data, order), 7))):
        stream = open_stream(write_npz(tmp_path / f"data-{number}", one, files=files), classes=data.classes)
        case = dataclasses.replace(CASES["kernel"], data=lambda stream=stream: stream, noise=0.5)
        plan = planned(case)
        folder = RunFolder.create(tmp_path / f"run-{number}", plan)
        seen.clear()
        more = {"stream": stream, "workers": 1}
        loop.make_critic(plan, folder, stream, torch.device("cpu"), more=more).prepare(None)
        found.append(torch.cat(seen))
    assert torch.equal(found[1], found[0][order])


def test_rounding_by_place_is_found(tmp_path: Path, monkeypatch) -> None:
    """As matrix products over records round on some processors: every second row changes in its last bits."""
    usual = RecordGradients._rows

    def rows(self: RecordGradients, loss: Callable[..., Tensor], *examples: Tensor) -> Tensor:
        found = usual(self, loss, *examples)
        found[1::2] = torch.nextafter(found[1::2], torch.tensor(torch.inf))
        return found

    monkeypatch.setattr(RecordGradients, "_rows", rows)
    with pytest.raises(AssertionError, match="auto-encoder update 0"):
        check_places(plan_placed("dp-merf-ae"), images(290), tmp_path, "cpu")
