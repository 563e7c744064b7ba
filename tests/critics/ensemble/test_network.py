from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gswgan.critics.ensemble import convolution
from gswgan.critics.ensemble.network import (
    Buffers,
    CriticShape,
    Parameters,
    image_gradient,
    init_critics,
    normalize,
    power_iteration,
    score,
)
from gswgan.errors import PlanError
from plain_critic import PlainCritic

SHAPES = [
    CriticShape(image_size=8, channels=1, classes=10, width=4),
    CriticShape(image_size=28, channels=1, classes=10, width=3),
    CriticShape(image_size=13, channels=3, classes=1, width=2),
    CriticShape(image_size=128, channels=3, classes=4, width=2),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """There is too little here to share out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plain(shape: CriticShape, params: Parameters, buffers: Buffers, k: int) -> PlainCritic:
    critic = PlainCritic(shape.image_size, shape.channels, shape.classes, shape.width)
    return critic.to(params["linear.weight"].dtype).load_slice(params, buffers, k)


def draw_batch(shape: CriticShape, critics: int, batch: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(7)
    size = (critics, batch, shape.channels, shape.image_size, shape.image_size)
    images = torch.rand(size, generator=stream, dtype=dtype)
    return images, torch.randint(shape.classes, (critics, batch), generator=stream)


def test_sides_are_halved_as_in_the_paper() -> None:
    sides = {size: CriticShape(image_size=size, channels=1, classes=10, width=64).sides for size in (8, 28, 64)}
    assert sides == {8: [8, 4, 2], 28: [28, 14, 7, 4], 64: [64, 32, 16, 8, 4]}
    shape = CriticShape(image_size=28, channels=1, classes=10, width=64)
    assert shape.features == 4 * 4 * 4 * 64
    assert shape.parameters["conv3.weight"] == (256, 128, 5, 5)
    assert shape.parameters["embed.weight"] == (10, 4096)


@pytest.mark.parametrize(
    "wrong", [{"image_size": 7}, {"image_size": 129}, {"channels": 2}, {"classes": 0}, {"width": 1}]
)
def test_impossible_shapes_are_refused(wrong: dict[str, int]) -> None:
    name = next(iter(wrong))
    with pytest.raises(PlanError, match=name):
        CriticShape(**({"image_size": 28, "channels": 1, "classes": 10, "width": 64} | wrong))


def test_a_critic_is_drawn_from_the_seed_and_its_number_alone() -> None:
    few_params, few_buffers = init_critics(SHAPES[1], 2, seed=5)
    many_params, many_buffers = init_critics(SHAPES[1], 9, seed=5)
    for name, value in (few_params | few_buffers).items():
        assert torch.equal(value, (many_params | many_buffers)[name][:2]), name
    double, _ = init_critics(SHAPES[1], 2, seed=5, dtype=torch.float64)
    other, _ = init_critics(SHAPES[1], 2, seed=6)
    for name, value in few_params.items():
        assert torch.equal(value.double(), double[name])
        assert not torch.equal(value[0], value[1])
        assert not torch.equal(value, other[name])
        bound = SHAPES[1].parameters[name.replace("bias", "weight")]
        assert value.abs().max() <= torch.Size(bound[1:]).numel() ** -0.5


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.image_size}x{s.channels}")
def test_scores_and_image_gradients_equal_those_of_separate_modules(shape: CriticShape) -> None:
    params, buffers = init_critics(shape, 3, seed=1, dtype=torch.float64)
    images, labels = draw_batch(shape, 3, 5, torch.float64)
    scores = score(normalize(params, buffers), images, labels)
    gradients = image_gradient(normalize(params, buffers), images, labels)
    for k in range(3):
        own = images[k].clone().requires_grad_()
        expected = plain(shape, params, buffers, k)(own, labels[k])
        torch.testing.assert_close(scores[k], expected.detach(), rtol=0, atol=1e-9)
        (expected_gradient,) = torch.autograd.grad(expected.sum(), own)
        torch.testing.assert_close(gradients[k], expected_gradient, rtol=0, atol=1e-9)


def test_labels_matter() -> None:
    params, buffers = init_critics(SHAPES[0], 2, seed=1)
    images, labels = draw_batch(SHAPES[0], 2, 5, torch.float32)
    assert (
        score(normalize(params, buffers), images, labels) - score(normalize(params, buffers), images, (labels + 1) % 10)
    ).abs().min() > 0


def test_one_batch_for_all_critics_is_scored_as_copies_of_it() -> None:
    params, buffers = init_critics(SHAPES[1], 3, seed=1)
    images, labels = draw_batch(SHAPES[1], 1, 6, torch.float32)
    shared = score(normalize(params, buffers), images.expand(3, -1, -1, -1, -1), labels.expand(3, -1))
    assert torch.equal(shared, score(normalize(params, buffers), images.repeat(3, 1, 1, 1, 1), labels.repeat(3, 1)))
    assert not torch.equal(shared[0], shared[1])


def test_power_iteration_finds_the_spectral_norm() -> None:
    params, buffers = init_critics(SHAPES[1], 2, seed=1, dtype=torch.float64)
    for _ in range(300):
        buffers = power_iteration(params, buffers)
    weights = normalize(params, buffers)
    for weight, _ in weights.convolutions:
        largest = torch.linalg.matrix_norm(weight.flatten(2), ord=2)
        torch.testing.assert_close(largest, torch.ones_like(largest), rtol=0, atol=1e-3)
    assert torch.linalg.vector_norm(weights.head[:, 0].flatten(1), dim=1).sub(1).abs().max() < 1e-12


def test_torchs_own_power_iteration_takes_the_same_steps() -> None:
    shape = SHAPES[1]
    params, buffers = init_critics(shape, 2, seed=3, dtype=torch.float64)
    critic = plain(shape, params, buffers, 1)
    for _ in range(3):
        buffers = power_iteration(params, buffers)
        critic.power_iteration()
    for name, layer in critic._layers().items():
        torch.testing.assert_close(layer.parametrizations.weight[0]._u, buffers[f"{name}.u"][1], rtol=0, atol=1e-12)
        torch.testing.assert_close(layer.parametrizations.weight[0]._v, buffers[f"{name}.v"][1], rtol=0, atol=1e-12)


def test_bfloat16_is_near_float32() -> None:
    params, buffers = init_critics(SHAPES[1], 3, seed=1)
    images, labels = draw_batch(SHAPES[1], 3, 5, torch.float32)
    exact, rough = (score(normalize(params, buffers, dtype), images, labels) for dtype in (None, torch.bfloat16))
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.02)
    assert not torch.equal(rough, exact)


@pytest.mark.parametrize(("inputs", "outputs", "side"), [(1, 3, 4), (4, 2, 4), (3, 5, 1)])
def test_a_kernel_that_covers_the_image_is_a_product(inputs: int, outputs: int, side: int) -> None:
    """The form for GPUs, run on the CPU: values and gradients, of the convolution and of its transpose."""
    stream = torch.Generator().manual_seed(3)
    images = torch.randn(4, 3, inputs, side, side, generator=stream, dtype=torch.float64).requires_grad_()
    weight = torch.randn(3, outputs, inputs, side, side, generator=stream, dtype=torch.float64).requires_grad_()
    bias = torch.randn(3, outputs, generator=stream, dtype=torch.float64).requires_grad_()
    results = []
    for forward, transposed in (
        (convolution._convolve_whole, convolution._transposed_whole),
        (
            lambda *args: convolution._convolve_grouped(*args, side, 0),
            lambda *args: convolution._transposed_grouped(*args, side, 0, side),
        ),
    ):
        for some in (bias, None):
            out = forward(images, weight, some)
            back = transposed(out.square(), weight)
            results.append([out, back, *torch.autograd.grad(back.square().sum(), (images, weight))])
    for whole, grouped in zip(results[:2], results[2:]):
        for found, expected in zip(whole, grouped):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("inputs", "outputs", "side"), [(1, 3, 7), (4, 2, 8), (64, 24, 14), (3, 8, 28), (32, 130, 7)])
def test_our_kernels_agree_with_a_grouped_convolution(inputs: int, outputs: int, side: int, dtype: torch.dtype) -> None:
    """On the GPU against float32 on the CPU: values and gradients, of the convolution and of its transpose."""
    stream = torch.Generator().manual_seed(3)
    images = torch.randn(4, 3, inputs, side, side, generator=stream)
    weight = torch.randn(3, outputs, inputs, 5, 5, generator=stream) / (25 * inputs) ** 0.5
    bias = torch.randn(3, outputs, generator=stream)
    results = []
    for device, kind in (("cpu", torch.float32), ("cuda", dtype)):
        leaves = [value.to(device, kind).requires_grad_() for value in (images, weight, bias)]
        out = convolution.convolve(*leaves, stride=2, padding=2)
        back = convolution.convolve_transposed(out, leaves[1], stride=2, padding=2, side=side)
        found = [out, back, *torch.autograd.grad(back.float().square().sum() + out.float().sum(), leaves)]
        results.append([value.detach().cpu().float() for value in found])
    for exact, ours in zip(*results):
        assert (ours - exact).norm() / exact.norm() < (1e-5 if dtype == torch.float32 else 0.02)
