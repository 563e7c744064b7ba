"""Adam over stacked critics, each with its own number of steps.

`torch.optim.Adam` has one number of steps for all, and its bias correction would make a critic depend on the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from gswgan.critics.ensemble.network import Parameters


@dataclass(frozen=True, kw_only=True)
class AdamState:
    """Running means of the gradient and of its square, and the number of updates of each critic."""

    exp_avg: Parameters
    exp_avg_sq: Parameters
    steps: Tensor  # [K], integers


def init_adam(params: Parameters) -> AdamState:
    """Return the state before the first update."""
    some = next(iter(params.values()))
    return AdamState(
        exp_avg={name: torch.zeros_like(value) for name, value in params.items()},
        exp_avg_sq={name: torch.zeros_like(value) for name, value in params.items()},
        steps=torch.zeros(len(some), dtype=torch.int64, device=some.device),
    )


def named_tensors(adam: AdamState, **groups: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return these groups of tensors and the optimizer's, by name: the tensors themselves, not copies."""
    groups |= {"exp_avg": adam.exp_avg, "exp_avg_sq": adam.exp_avg_sq}
    named = {f"{group}/{name}": value for group, part in groups.items() for name, value in part.items()}
    return named | {"steps": adam.steps}


@torch.no_grad()
def adam_step(
    params: Parameters,
    grads: Parameters,
    state: AdamState,
    *,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float = 1e-8,
) -> None:
    """Update all critics in place, as `torch.optim.Adam` would each of them after its own number of steps.

    The step size and the two bias corrections differ from critic to critic; they are folded into the
    denominator, lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) = m / (sqrt(v) scale + shift).
    """
    names = list(params)
    values, means = [params[n] for n in names], [state.exp_avg[n] for n in names]
    squares, gradients = [state.exp_avg_sq[n] for n in names], [grads[n] for n in names]
    state.steps.add_(1)
    first, second = (1 - _power(beta, state.steps) for beta in betas)
    scale, shift = first / (second.sqrt() * learning_rate), first * (eps / learning_rate)

    if state.steps.is_cuda and values[0].dtype == torch.float32:
        from gswgan.critics.ensemble import gpu_weights  # Triton comes with the CUDA builds of torch only

        for value, gradient, mean, square in zip(values, gradients, means, squares):
            gpu_weights.adam(value, gradient, mean, square, scale, shift, betas)
        return
    torch._foreach_lerp_(means, gradients, 1 - betas[0])
    torch._foreach_mul_(squares, betas[1])
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - betas[1])
    roots = torch._foreach_sqrt(squares)
    for root in roots:
        per_critic = (-1, *(1,) * (root.ndim - 1))
        root.mul_(scale.to(root.dtype).view(per_critic)).add_(shift.to(root.dtype).view(per_critic))
    torch._foreach_addcdiv_(values, means, roots, -1)


def _power(base: float, exponents: Tensor) -> Tensor:
    """Return `base ** exponents` in float64 from two tables; an element's bits do not depend on its place.

    Those of `torch.pow` do: it treats whole vectors of numbers and the remaining ones differently.
    """
    low, high = _tables(base, exponents.device)
    return low[exponents % len(low)] * high[(exponents // len(low)).clamp(max=len(high) - 1)]


@cache
def _tables(base: float, device: torch.device, size: int = 1024) -> tuple[Tensor, Tensor]:
    powers = [[base ** (stride * i) for i in range(size)] for stride in (1, size)]
    low, high = torch.tensor(powers, dtype=torch.float64, device=device)
    return low, high
