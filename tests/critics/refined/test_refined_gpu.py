"""The denoiser's gradients and their clipped sum on a GPU: right, and the same for a record wherever it stands."""

from __future__ import annotations

import pytest
import torch

from gswgan.critics.refined.gradients import Gradients
from gswgan.generators.denoiser import PLAIN, Denoiser
from gswgan.privacy.mechanism import GRID_BITS, MARGIN, clip_to_grid

pytestmark = pytest.mark.gpu


def make(side: int = 28, width: int = 32, channels: int = 1) -> Denoiser:
    torch.manual_seed(0)
    denoiser = Denoiser(image_size=side, channels=channels, classes=10, width=width)
    with torch.no_grad():
        for name, value in denoiser.weights.items():
            if name.endswith("last"):  # they begin at zero, which would hide the layers before them
                value.normal_(std=value.shape[1] ** -0.5)
    return denoiser


def batch(count: int, side: int = 28, channels: int = 1, seed: int = 0) -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, channels, side, side), generator=rng, dtype=torch.uint8)
    return images, torch.randint(0, 10, (count,), generator=rng), torch.randperm(60_000, generator=rng)[:count]


@pytest.mark.parametrize("channels", [16, 32, 96, 128])
def test_the_fused_activation_is_the_plain_one(channels: int) -> None:
    from gswgan.critics.refined import gpu_activation

    torch.manual_seed(1)
    images = torch.randn(5, 14, 14, channels, device="cuda", requires_grad=True)
    change = torch.randn(5, 2 * channels, device="cuda", requires_grad=True)
    upstream = torch.randn_like(images)
    found, plain = gpu_activation.activate(images, change), PLAIN.activate(images, change)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(
        torch.autograd.grad(found, (images, change), upstream), torch.autograd.grad(plain, (images, change), upstream)
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("side", "width", "channels"), [(28, 32, 1), (8, 8, 1), (32, 16, 3)])
def test_rows_are_those_of_the_cpu(side: int, width: int, channels: int) -> None:
    denoiser, (images, labels, records) = make(side, width, channels), batch(6, side, channels)
    seed = torch.tensor(12345)
    exact = Gradients(denoiser, draws=4).of_records(images, labels, records, seed)
    inputs = (part.cuda() for part in (images, labels, records, seed))
    found = Gradients(denoiser.cuda(), draws=4).of_records(*inputs).float().cpu()
    apart = (found - exact).norm(dim=1) / exact.norm(dim=1)
    assert apart.max() < 0.03  # bfloat16


@pytest.mark.parametrize("draws", [1, 4, 8])
def test_a_record_has_the_same_row_wherever_it_stands_and_whoever_is_there(draws: int) -> None:
    gradients, count = Gradients(make().cuda(), draws=draws), 40
    seed = torch.tensor(7, device="cuda")
    mine = [part.cuda() for part in batch(count)]
    expected = gradients.of_records(*mine, seed)
    for trial in range(8):  # eager at first, then replayed
        others = [part.cuda() for part in batch(count, seed=trial + 1)]
        order = torch.randperm(count, generator=torch.Generator().manual_seed(trial))
        kept, place = order[:10].cuda(), order.flip(0)[:10].cuda()
        for part, own in zip(others, mine):
            part[place] = own[kept]
        assert torch.equal(gradients.of_records(*others, seed)[place], expected[kept])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32], ids=str)
def test_the_clipped_sum_is_the_mechanisms(kind: torch.dtype) -> None:
    from gswgan.privacy.gpu_clip import clipped_row_sum

    torch.manual_seed(2)
    rows = (torch.randn(70, 100_003, device="cuda") * torch.logspace(-9, 6, 70, device="cuda")[:, None]).to(kind)
    rows[3, 17], rows[9, 100_002], rows[20] = float("nan"), float("inf"), 0.0
    whole = clip_to_grid(rows, 0.7)
    found = clipped_row_sum(rows, 0.7, margin=MARGIN, grid_bits=GRID_BITS)
    assert (found - whole.sum(dim=0)).abs().max() <= len(rows)  # a step of the grid for each row
    for index in (0, 3, 9, 20, 40, 69):
        alone = clipped_row_sum(rows[index : index + 1], 0.7, margin=MARGIN, grid_bits=GRID_BITS)
        assert (alone - whole[index]).abs().max() <= 1
        assert int((alone * alone).sum()) <= 1 << 2 * GRID_BITS
        assert index not in (3, 9, 20) or not alone.any()
    parts = [clipped_row_sum(part, 0.7, margin=MARGIN, grid_bits=GRID_BITS) for part in rows.split([13, 1, 56])]
    assert torch.equal(sum(parts[1:], parts[0]), found)  # a row is clipped alike whoever else is there
