"""The paper's loss equations of critic and generator, for m critics at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gswgan.critics.ensemble.convolution import row_norm, row_sum
from gswgan.critics.ensemble.network import Buffers, Parameters, image_gradient, normalize, score


def critic_loss(
    params: Parameters,
    buffers: Buffers,
    real: Tensor,
    real_labels: Tensor,
    fake: Tensor,
    fake_labels: Tensor,
    mix: Tensor,
    *,
    penalty_weight: float,
    drift_penalty: float,
    compute_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return L_D of each critic, [m] (the paper's equation for the discriminator, with a drift term).

        -E D(x) + E D(G(z)) + penalty_weight E (|grad D(a x + (1-a) G(z))| - 1)^2 + drift_penalty E D(x)^2

    `real` and `fake` are [m, B, c, h, w], labels [m, B], and `mix` [m, B] holds the a, uniform in [0, 1].
    Fakes carry labels of their own; at the interpolate, the penalty is evaluated under the real label.
    """
    weights = normalize(params, buffers, compute_dtype)
    batch = real.shape[1]
    scores = score(weights, torch.cat([real, fake], dim=1), torch.cat([real_labels, fake_labels], dim=1))
    on_real, on_fake = scores[:, :batch], scores[:, batch:]

    share = mix[:, :, None, None, None]
    gradient = image_gradient(weights, share * real + (1 - share) * fake, real_labels)
    penalty = (row_norm(gradient.to(scores.dtype).flatten(2)) - 1).square()
    each = on_fake - on_real + penalty_weight * penalty + drift_penalty * on_real.square()
    return row_sum(each) / batch


def critic_gradients(params: Parameters, buffers: Buffers, *batch: Tensor, **options: Any) -> tuple[Tensor, Parameters]:
    """Return `critic_loss` [m] and, for each critic, the gradient of its own loss in its own parameters.

    The arguments are those of `critic_loss`.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    loss = critic_loss(leaves, buffers, *batch, **options)
    grads = torch.autograd.grad(loss, list(leaves.values()), torch.ones_like(loss))
    return loss.detach(), dict(zip(leaves, grads))


@torch.no_grad()
def generator_gradient(
    params: Parameters,
    buffers: Buffers,
    fake: Tensor,
    labels: Tensor,
    compute_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the upstream gradient before sanitization: of -D(G(z)) in each fake, [m, B, c, h, w].

    This is the summand of L_G (the paper's equation for the generator) for each sample, not divided by B;
    under the penalty its norm is near 1. `fake` is [B, c, h, w] with `labels` [B], one batch for all m
    critics, or [m, B, c, h, w] with [m, B].
    """
    weights = normalize(params, buffers, compute_dtype)
    if fake.ndim == 4:
        critics = len(weights.head)
        fake, labels = fake.expand(critics, *fake.shape), labels.expand(critics, *labels.shape)
    return -image_gradient(weights, fake, labels).to(weights.head.dtype)
