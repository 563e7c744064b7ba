from __future__ import annotations

import numpy as np
import pytest
import torch

from gswgan.critics.ensemble.network import CriticShape
from gswgan.critics.ensemble.stack import GraphSlots, Stack

SHAPE = CriticShape(image_size=8, channels=1, classes=3, width=2)
CPU = torch.device("cpu")


@pytest.fixture
def stack() -> Stack:
    """Seven critics whose every number tells whose it is."""
    drawn = Stack.drawn(SHAPE, range(7), 0, CPU)
    for value in drawn.tensors().values():
        value.copy_(torch.arange(7).view(-1, *(1,) * (value.ndim - 1)).expand_as(value))
    return drawn


def owners(stack: Stack) -> list[int]:
    """Whose the critics of a stack are; all tensors of a critic must agree."""
    found = [value.flatten(1) if value.ndim > 1 else value[:, None] for value in stack.tensors().values()]
    assert all(torch.equal(part.double(), found[0][:, :1].double().expand_as(part)) for part in found)
    return [int(first) for first in found[0][:, 0]]


def test_a_copy_has_memory_of_its_own(stack: Stack) -> None:
    copy = stack.copy(np.array([4, 1, 4]))
    assert owners(copy) == [4, 1, 4]
    for value in copy.tensors().values():
        value.fill_(9)
    assert owners(stack) == list(range(7))


def test_read_and_write_concern_the_members_alone(stack: Stack) -> None:
    slots = stack.copy(np.array([0, 0, 0, 0]))
    places = [value.data_ptr() for value in slots.tensors().values()]
    slots.read(stack, np.array([5, 2, 5, 2]))
    assert owners(slots) == [5, 2, 5, 2]
    assert places == [value.data_ptr() for value in slots.tensors().values()]  # where a recording looks for them
    for value in slots.tensors().values():
        value.add_(10)
        value[2:] = 99  # what fills up the slots
    stack.write(np.array([5, 2]), slots)
    assert owners(stack) == [0, 1, 12, 3, 4, 15, 6]


def test_tensors_are_all_of_it(stack: Stack) -> None:
    """The same names as ever: they are those of a checkpoint."""
    names = {name.split("/")[0] for name in stack.tensors()}
    assert names == {"params", "buffers", "exp_avg", "exp_avg_sq", "steps"}
    assert len(stack.tensors()) == 3 * len(stack.params) + len(stack.buffers) + 1
    assert stack.tensors()["params/conv1.weight"] is stack.params["conv1.weight"]


def test_slots_work_on_their_own_critics(stack: Stack) -> None:
    slots = GraphSlots(
        stack,
        lambda critics, values: critics.params["linear.bias"].add_(values),
        lambda critics, values: critics.params["linear.bias"] * values,
    )
    slots.learn(torch.ones(7, 1))
    assert stack.params["linear.bias"][:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert slots.input_gradients(torch.tensor(2.0))[:, 0].tolist() == [2, 4, 6, 8, 10, 12, 14]


def test_critics_in_the_slots_are_not_copied_again(stack: Stack) -> None:
    slots = GraphSlots(stack.copy(np.array([0, 0])), lambda *_: torch.zeros(1), lambda *_: torch.zeros(1))
    slots.load(stack, np.array([3, 5]))
    assert owners(slots.critics) == [3, 5]
    for value in slots.critics.tensors().values():
        value.fill_(9)
    slots.load(stack, np.array([3, 5]))
    assert owners(slots.critics) == [9, 9]
    slots.load(stack, np.array([5, 3]))
    assert owners(slots.critics) == [5, 3]
