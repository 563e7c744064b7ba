"""The state of a torch optimizer as named tensors, which a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def optimizer_tensors(optimizer: torch.optim.Optimizer, prefix: str) -> dict[str, Tensor]:
    """Return the optimizer's tensors, each named by the prefix, the number of its parameter and its own name."""
    state = optimizer.state_dict()["state"]
    return {f"{prefix}{index}.{name}": value for index, slots in state.items() for name, value in slots.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Restore what `optimizer_tensors` returned; tensors with other names are ignored."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith(prefix):
            index, _, name = key.removeprefix(prefix).partition(".")
            state.setdefault(int(index), {})[name] = value.clone()
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
