from __future__ import annotations

import pytest
import torch

from gswgan.generators.cuda_graphs import EAGER, Captured

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_recorded_function_does_what_a_called_one_does(device: str) -> None:
    """New inputs reach every call, state is kept, and nothing is done twice by recording."""
    total = torch.zeros(3, device=device)

    def add(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        total.add_(values * factor)
        return total * 2

    run, expected = Captured(add), torch.zeros(3)
    for call in range(EAGER + 4):
        values, factor = torch.arange(3.0) + call, torch.tensor(call + 1.0)
        expected += values * factor
        found = run(values.to(device), factor.to(device))
        assert found is not None
        assert torch.equal(found.cpu(), expected * 2)
    assert torch.equal(total.cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_given_back_is_the_callers(device: str) -> None:
    run = Captured(lambda values: values + 1)
    found = [run(torch.full((2,), float(call), device=device)) for call in range(EAGER + 4)]
    assert [float(value[0]) for value in found if value is not None] == [call + 1.0 for call in range(EAGER + 4)]


@pytest.mark.parametrize("device", DEVICES)
def test_other_shapes_are_recorded_anew(device: str) -> None:
    run = Captured(lambda values: values.cumsum(0))
    for call in range(3 * (EAGER + 3)):
        size = 2 + call % 3
        found = run(torch.full((size,), float(call), device=device))
        assert found is not None
        assert found.tolist() == [call * (i + 1.0) for i in range(size)]


@pytest.mark.gpu
def test_an_old_graph_that_becomes_garbage_does_not_end_a_recording() -> None:
    """The collector would free it at any allocation of a Python object, also in the middle of a recording."""
    old = Captured(lambda values: values + 1)
    for _ in range(EAGER + 2):
        old(torch.ones(2, device="cuda"))
    ring: list[object] = [old]
    ring.append(ring)  # only the collector frees it
    recordings = 0

    def work(values: torch.Tensor) -> torch.Tensor:
        nonlocal recordings
        if torch.cuda.is_current_stream_capturing():
            recordings += 1
            several: list[list[object]] = []
            for _ in range(2000):  # more than the collector's threshold
                several.append([several])
        return values + 1

    run = Captured(work)
    for _ in range(EAGER):
        run(torch.ones(3, device="cuda"))
    del ring, old
    for _ in range(2):
        found = run(torch.ones(3, device="cuda"))
    assert recordings == 1
    assert found is not None
    assert found.tolist() == [2.0] * 3


def test_on_the_cpu_the_function_is_simply_called() -> None:
    given = torch.ones(2)
    assert Captured(lambda values: values)(given) is given
    assert Captured(lambda values: None)(given) is None
