"""Gradients of single records through the denoiser: right, averaged over draws before anything else, and alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gswgan.critics.dp_sgd import RecordGradients, update_event
from gswgan.critics.refined.draws import LEVEL_MEAN, LEVEL_STD, noise_levels, normal_noise
from gswgan.critics.refined.gradients import Gradients, centred
from gswgan.generators.denoiser import Denoiser, loss_of_draws
from gswgan.generators.preconditioner import Preconditioner, preconditioner_of
from gswgan.privacy import Contribution

SEED = torch.tensor(12345)


def make(side: int = 8, width: int = 8) -> Denoiser:
    torch.manual_seed(0)
    denoiser = Denoiser(image_size=side, channels=1, classes=10, width=width)
    with torch.no_grad():
        for name, value in denoiser.weights.items():
            if name.endswith("last"):  # they begin at zero, which would hide the layers before them
                value.normal_(std=value.shape[1] ** -0.5)
    return denoiser


def batch(count: int, *, side: int = 8, seed: int = 0) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 1, side, side), generator=rng, dtype=torch.uint8)
    return [images, torch.randint(0, 10, (count,), generator=rng), torch.randperm(60_000, generator=rng)[:count]]


def plain(denoiser: Denoiser, image: torch.Tensor, label: torch.Tensor, record: torch.Tensor, draws: int):
    """The gradient of the mean loss over a record's draws, by PyTorch alone."""
    count = image.numel()
    noise = normal_noise(SEED, record[None], draws * count).view(draws, *image.shape[1:], 1)
    levels = noise_levels(SEED, record[None], draws)[0]
    images = centred(image[None].float() / 255).repeat(draws, 1, 1, 1)
    loss = loss_of_draws(denoiser, images, noise, levels, label.repeat(draws)).mean()
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(denoiser.parameters()))])


@pytest.mark.parametrize(("side", "draws"), [(8, 1), (8, 4), (13, 2)])
def test_a_row_is_the_gradient_of_the_records_mean_loss_over_its_draws(side: int, draws: int) -> None:
    denoiser, (images, labels, records) = make(side), batch(4, side=side)
    rows = Gradients(denoiser, draws=draws).of_records(images, labels, records, SEED)
    assert rows.shape == (4, sum(value.numel() for value in denoiser.parameters()))
    for index in range(4):
        exact = plain(denoiser, images[index], labels[index], records[index], draws)
        assert (rows[index] - exact).norm() < 1e-5 * exact.norm()


def test_a_batch_of_samples_has_the_mean_gradient() -> None:
    denoiser, (images, labels, _) = make(), batch(32)
    found = Gradients(denoiser, draws=3).of_samples(images.float() / 255, labels, SEED)
    number = torch.arange(32)
    noise, levels = normal_noise(SEED, number, 64).view(32, 8, 8, 1), noise_levels(SEED, number[:1], 32)[0]
    loss = loss_of_draws(denoiser, centred(images.float() / 255), noise, levels, labels).mean()
    exact = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(denoiser.parameters()))])
    assert (found - exact).norm() < 1e-5 * exact.norm()


def check_places(width: int, draws: int, trials: int) -> None:
    """A record's row, as the mechanism gets it, has the same bits wherever it stands and whoever else is there."""
    denoiser, count = make(width=width), 32
    gradients, preconditioner = Gradients(denoiser, draws=draws), preconditioner_of(denoiser, torch.device("cpu"))
    mine = batch(count)
    public = [gradients.of_samples(mine[0][:16].float() / 255, mine[1][:16], torch.tensor(k)) for k in range(4)]
    preconditioner.fit(torch.stack(public), power=0.5)
    expected = preconditioner.forward(gradients.of_records(*mine, SEED))
    for trial in range(trials):
        others = batch(count, seed=trial + 1)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(trial))
        kept, place = order[:7], order.flip(0)[:7]
        for part, own in zip(others, mine):
            part[place] = own[kept]
        found = preconditioner.forward(gradients.of_records(*others, SEED))
        assert torch.equal(found[place], expected[kept]), "a row depends on its place"


@pytest.mark.parametrize(("width", "draws"), [(4, 1), (8, 1), (8, 4), (12, 2), (16, 1)])
def test_a_record_has_the_same_row_wherever_it_stands_and_whoever_is_there(width: int, draws: int) -> None:
    check_places(width, draws, 12 if width < 12 else 4)


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_whatever_the_number_of_threads_a_row_is_the_same_whoever_is_there(threads: int) -> None:
    """PyTorch rounds otherwise where one thread's part of a tensor ends: rows are computed in one thread each."""
    count, before = 96, torch.get_num_threads()
    denoiser, (images, labels, _) = make(side=27, width=4), batch(count, side=27)
    gradients, event = Gradients(denoiser, draws=3), update_event(clip_norm=1, noise_multiplier=1, batch=9, records=96)
    mechanism: Any = SimpleNamespace(event=event, contribution=Contribution(clip_norm=1.0))
    descent = RecordGradients(denoiser, mechanism, at_once=True)
    descent.prepare(count, numbers_per_chunk=1)
    assert descent.chunk == 32

    def rows(members: np.ndarray) -> torch.Tensor:
        some = torch.from_numpy(members)
        return gradients.of_records(images[some], labels[some], some, SEED)

    torch.set_num_threads(threads)
    try:
        whole, rest = (
            torch.cat([found for found, _ in descent.blocks(np.arange(first, count), rows)]) for first in (0, 1)
        )
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(rest, whole[1:])


def test_the_check_finds_rows_that_depend_on_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Preconditioner.forward

    def shifted(self: Preconditioner, rows: torch.Tensor) -> torch.Tensor:
        return forward(self, rows) + 1e-12 * torch.arange(len(rows))[:, None] * rows.abs().max()

    monkeypatch.setattr(Preconditioner, "forward", shifted)
    with pytest.raises(AssertionError, match="depends on its place"):
        check_places(8, 1, 4)


def test_noise_is_normal_and_belongs_to_a_record_and_a_seed() -> None:
    records = torch.arange(300)
    noise = normal_noise(SEED, records, 3000)
    assert abs(float(noise.mean())) < 0.005
    assert float(noise.std()) == pytest.approx(1.0, abs=0.005)
    assert float((noise**4).mean()) == pytest.approx(3.0, abs=0.05)
    correlation = torch.corrcoef(noise[:40]) - torch.eye(40)
    assert float(correlation.abs().max()) < 0.1
    assert torch.equal(normal_noise(SEED, records[[7]], 3000)[0], noise[7])
    assert not torch.equal(normal_noise(SEED + 1, records[[7]], 3000)[0], noise[7])


def test_levels_are_spread_evenly_over_their_law() -> None:
    levels = noise_levels(SEED, torch.arange(4000), 4).log()
    assert float(levels.mean()) == pytest.approx(LEVEL_MEAN, abs=0.03)
    assert float(levels.std()) == pytest.approx(LEVEL_STD, abs=0.03)
    assert (levels.diff(dim=1) > 0).all()  # one in each quarter of the law
    median = (levels < LEVEL_MEAN).float().mean(dim=0)
    assert median.tolist() == [1.0, 1.0, 0.0, 0.0]
