from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ensembles import threads  # noqa: F401
from torch import Tensor

from gswgan.critics.ensemble.adam import AdamState, adam_step, init_adam
from gswgan.critics.ensemble.loss import critic_gradients, critic_loss, generator_gradient
from gswgan.critics.ensemble.network import (
    Buffers,
    CriticShape,
    Parameters,
    init_critics,
    normalize,
    power_iteration,
    score,
)
from plain_critic import PlainCritic, plain_loss

PENALTY = {"penalty_weight": 10.0, "drift_penalty": 1e-3}
ADAM = {"learning_rate": 1e-3, "betas": (0.5, 0.9)}
SMALL = CriticShape(image_size=8, channels=1, classes=4, width=4)
COLOUR = CriticShape(image_size=13, channels=3, classes=1, width=3)
PAPER = CriticShape(image_size=28, channels=1, classes=10, width=3)
Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # real, labels, fake, labels, mix


def draw_batch(shape: CriticShape, critics: int, batch: int, dtype: torch.dtype) -> Batch:
    stream = torch.Generator().manual_seed(critics)
    size = (critics, batch, shape.channels, shape.image_size, shape.image_size)
    real, fake = (torch.rand(size, generator=stream, dtype=dtype) for _ in range(2))
    real_labels, fake_labels = (torch.randint(shape.classes, size[:2], generator=stream) for _ in range(2))
    return real, real_labels, fake, fake_labels, torch.rand(size[:2], generator=stream, dtype=dtype)


def plain(shape: CriticShape, params: Parameters, buffers: Buffers, k: int) -> PlainCritic:
    critic = PlainCritic(shape.image_size, shape.channels, shape.classes, shape.width)
    return critic.to(params["linear.weight"].dtype).load_slice(params, buffers, k)


@pytest.mark.parametrize("shape", [SMALL, COLOUR, PAPER], ids=["small", "colour", "paper"])
def test_updates_equal_a_loop_over_separate_modules(shape: CriticShape) -> None:
    """Loss and gradients (by double backward there), and the weights after four updates with Adam."""
    params, buffers = init_critics(shape, 3, seed=1, dtype=torch.float64)
    critics = [plain(shape, params, buffers, k) for k in range(3)]
    optimizers = [torch.optim.Adam(c.parameters(), lr=1e-3, betas=(0.5, 0.9)) for c in critics]
    adam = init_adam(params)
    batch = draw_batch(shape, 3, 5, torch.float64)
    for _ in range(4):
        buffers = power_iteration(params, buffers)
        loss, grads = critic_gradients(params, buffers, *batch, **PENALTY)
        for k, (critic, optimizer) in enumerate(zip(critics, optimizers)):
            critic.power_iteration()
            expected = plain_loss(critic, *(x[k] for x in batch), **PENALTY)
            torch.testing.assert_close(loss[k], expected.detach(), rtol=0, atol=1e-9)
            optimizer.zero_grad()
            expected.backward()
            for name, value in critic.by_stack_name().items():
                torch.testing.assert_close(grads[name][k], value.grad, rtol=0, atol=1e-9, msg=name)
            optimizer.step()
        adam_step(params, grads, adam, **ADAM)
    for k, critic in enumerate(critics):
        for name, value in critic.by_stack_name().items():
            torch.testing.assert_close(params[name][k], value.detach(), rtol=0, atol=1e-9, msg=name)


def test_each_term_of_the_loss() -> None:
    params, buffers = init_critics(SMALL, 2, seed=1, dtype=torch.float64)
    real, real_labels, fake, fake_labels, mix = batch = draw_batch(SMALL, 2, 5, torch.float64)
    on_real, on_fake = (
        score(normalize(params, buffers), real, real_labels),
        score(normalize(params, buffers), fake, fake_labels),
    )
    wasserstein = on_fake.mean(dim=1) - on_real.mean(dim=1)
    between = mix[:, :, None, None, None] * real + (1 - mix)[:, :, None, None, None] * fake
    norms = generator_gradient(params, buffers, between, real_labels).flatten(2).norm(dim=2)
    loss = critic_loss(params, buffers, *batch, penalty_weight=0.0, drift_penalty=0.0)
    torch.testing.assert_close(loss, wasserstein)
    loss = critic_loss(params, buffers, *batch, penalty_weight=7.0, drift_penalty=0.0)
    torch.testing.assert_close(loss, wasserstein + 7 * ((norms - 1) ** 2).mean(dim=1))
    loss = critic_loss(params, buffers, *batch, penalty_weight=0.0, drift_penalty=0.5)
    torch.testing.assert_close(loss, wasserstein + 0.5 * (on_real**2).mean(dim=1))


def test_generator_gradient_is_of_each_sample_and_not_divided_by_the_batch() -> None:
    params, buffers = init_critics(PAPER, 2, seed=1, dtype=torch.float64)
    _, _, fake, labels, _ = draw_batch(PAPER, 2, 6, torch.float64)
    gradient = generator_gradient(params, buffers, fake, labels)
    for k in range(2):
        own = fake[k].clone().requires_grad_()
        (expected,) = torch.autograd.grad(-plain(PAPER, params, buffers, k)(own, labels[k]).sum(), own)
        torch.testing.assert_close(gradient[k], expected, rtol=0, atol=1e-9)
    shared = generator_gradient(params, buffers, fake[0], labels[0])
    assert shared.shape == (2, *fake[0].shape)
    assert torch.equal(shared[0], gradient[0])
    assert not torch.equal(shared[0], shared[1])


def test_a_flat_critic_has_a_finite_gradient() -> None:
    """Every ReLU is off, the gradient in the image is 0, and the norm has no derivative there."""
    params, buffers = init_critics(SMALL, 2, seed=1)
    params["conv1.bias"] -= 100
    params["conv2.bias"] -= 100
    loss, grads = critic_gradients(params, buffers, *draw_batch(SMALL, 2, 5, torch.float32), **PENALTY)
    assert torch.allclose(loss, torch.tensor(10.0), atol=0.1)
    assert all(value.isfinite().all() for value in grads.values())


def test_adam_equals_torchs_for_critics_of_different_age() -> None:
    stream = torch.Generator().manual_seed(0)
    params = {n: torch.randn(4, *s, generator=stream, dtype=torch.float64) for n, s in {"a": (3, 2), "b": (5,)}.items()}
    loop = [{n: v[k].clone().requires_grad_() for n, v in params.items()} for k in range(4)]
    optimizers = [torch.optim.Adam(own.values(), lr=3e-3, betas=(0.8, 0.999), eps=1e-6) for own in loop]
    state = init_adam(params)
    for step in range(12):
        members = torch.tensor([k for k in range(4) if step % (k + 1) == 0])
        grads = {
            n: torch.randn(len(members), *v.shape[1:], generator=stream, dtype=torch.float64) for n, v in params.items()
        }
        part = AdamState(
            exp_avg={n: v[members] for n, v in state.exp_avg.items()},
            exp_avg_sq={n: v[members] for n, v in state.exp_avg_sq.items()},
            steps=state.steps[members],
        )
        own = {n: v[members] for n, v in params.items()}
        adam_step(own, grads, part, learning_rate=3e-3, betas=(0.8, 0.999), eps=1e-6)
        for name in params:
            params[name][members] = own[name]
            state.exp_avg[name][members] = part.exp_avg[name]
            state.exp_avg_sq[name][members] = part.exp_avg_sq[name]
        state.steps[members] = part.steps
        for place, k in enumerate(members.tolist()):
            for name, value in loop[k].items():
                value.grad = grads[name][place]
            optimizers[k].step()
    assert state.steps.tolist() == [12, 6, 4, 3]
    for k in range(4):
        for name, value in loop[k].items():
            torch.testing.assert_close(params[name][k], value.detach(), rtol=0, atol=1e-12)


def test_adam_after_very_many_steps() -> None:
    params = {"a": torch.zeros(3, 1, dtype=torch.float64)}
    state = init_adam(params)
    state.steps.copy_(torch.tensor([1022, 1023, 2**40]))
    adam_step(
        params, {"a": torch.ones(3, 1, dtype=torch.float64)}, state, learning_rate=1.0, betas=(0.9, 0.999), eps=0.0
    )
    corrections = [(1 - 0.9**t) / (1 - 0.999**t) ** 0.5 for t in (1023, 1024, 10**6)]
    expected = torch.tensor([-0.1 / 0.001**0.5 / c for c in corrections], dtype=torch.float64)
    torch.testing.assert_close(params["a"][:, 0], expected, rtol=1e-12, atol=0)


def test_adam_gives_the_same_bits_in_any_place() -> None:
    """A long row of critics of many ages: most are worked on in whole vector registers, the last ones are not."""
    stream = torch.Generator().manual_seed(0)
    ages = torch.arange(157) * 3
    values, gradients, squares = (torch.randn(157, 5, generator=stream, dtype=torch.float64) for _ in range(3))

    def run(index: Tensor) -> Tensor:
        params = {"a": values[index]}
        state = AdamState(exp_avg={"a": values[index]}, exp_avg_sq={"a": squares[index] ** 2}, steps=ages[index])
        adam_step(params, {"a": gradients[index]}, state, learning_rate=1.0, betas=(0.9, 0.999))
        return params["a"]

    straight = run(torch.arange(157))
    for _ in range(5):
        index = torch.randperm(157, generator=stream)
        assert torch.equal(run(index), straight[index])


# Odd sizes on purpose: rows that do not fill a vector register, critics that begin at unaligned addresses.
STACKS = {
    "small": (CriticShape(image_size=8, channels=1, classes=10, width=8), 8, 7),
    "odd": (CriticShape(image_size=9, channels=3, classes=1, width=3), 3, 4),
    "thin": (CriticShape(image_size=16, channels=3, classes=4, width=5), 7, 5),
    "paper": (CriticShape(image_size=28, channels=1, classes=10, width=6), 5, 3),
    "wide": (CriticShape(image_size=28, channels=1, classes=10, width=16), 3, 3),
}


@pytest.mark.parametrize(
    ("threads", "dtype"), [(1, torch.float32), (2, torch.float32), (1, torch.bfloat16)], indirect=["threads"], ids=str
)  # bfloat16 convolutions are float32 ones on a CPU
@pytest.mark.parametrize("stack", STACKS)
def test_a_critic_is_the_same_to_the_last_bit_whoever_else_is_there(stack: str, dtype: torch.dtype) -> None:
    check_bits(*STACKS[stack], device="cpu", compute_dtype=dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stack", STACKS)
def test_a_critic_is_the_same_to_the_last_bit_on_a_gpu(stack: str, dtype: torch.dtype) -> None:
    check_bits(*STACKS[stack], device="cuda", compute_dtype=dtype)


def check_bits(shape: CriticShape, batch: int, chunk: int, *, device: str, compute_dtype: torch.dtype) -> None:
    """Of twice `chunk` critics: other places, other neighbours, and neighbours that have gone mad."""
    params, buffers = init_critics(shape, 2 * chunk, seed=2, device=device)
    data = tuple(x.to(device) for x in draw_batch(shape, 2 * chunk, batch, torch.float32))
    state = init_adam(params)
    state.steps.add_(torch.arange(2 * chunk, device=device))

    def run(members: list[int], spoil: Callable[[Tensor], None] | None = None) -> dict[str, Tensor]:
        index = torch.tensor(members, device=device)
        own, vectors = ({n: v[index] for n, v in group.items()} for group in (params, buffers))
        if spoil is not None:
            for value in own.values():
                spoil(value[1:])
        adam = AdamState(
            exp_avg={n: v[index] for n, v in state.exp_avg.items()},
            exp_avg_sq={n: v[index] for n, v in state.exp_avg_sq.items()},
            steps=state.steps[index],
        )
        for _ in range(2):
            vectors = power_iteration(own, vectors)
            loss, grads = critic_gradients(
                own, vectors, *(x[index] for x in data), **PENALTY, compute_dtype=compute_dtype
            )
            adam_step(own, grads, adam, **ADAM)
        upstream = generator_gradient(own, vectors, data[2][0], data[3][0], compute_dtype)
        results = {"loss": loss, "upstream": upstream} | own | vectors
        return results | {f"gradient of {name}": value for name, value in grads.items()}

    first = run(list(range(chunk)))
    stream = torch.Generator().manual_seed(0)
    for _ in range(3):
        members = torch.randperm(2 * chunk, generator=stream)[:chunk].tolist()
        for name, value in run(members).items():
            for place, k in enumerate(members):
                assert k >= chunk or torch.equal(value[place], first[name][k]), (name, k, place)
    for poison in (float("nan"), 1e30):
        spoiled = run(list(range(chunk)), lambda neighbours, poison=poison: neighbours.fill_(poison))
        for name, value in spoiled.items():
            assert torch.equal(value[0], first[name][0]), (name, poison)
