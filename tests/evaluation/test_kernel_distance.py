from __future__ import annotations

import numpy as np
import pytest
import torch

from gswgan.errors import DataError
from gswgan.evaluation.kernel_distance import kernel_distance, squared_mmd


def cloud(n: int, *, seed: int, shift: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 16)).astype(np.float32) + np.float32(shift)


class Pixels(torch.nn.Module):
    """Stands in for Inception: the first 16 pixels."""

    num_features = 16

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)[:, :16].double()


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance` will save all:UserWarning")
def test_equals_torchmetrics_and_the_definition() -> None:
    image = pytest.importorskip("torchmetrics.image.kid")
    rng = np.random.default_rng(0)
    real, fake = (torch.from_numpy(rng.integers(low, 256, (60, 3, 4, 4), dtype=np.uint8)) for low in (0, 60))
    theirs = image.KernelInceptionDistance(feature=Pixels(), subsets=1, subset_size=60)
    theirs.update(real, real=True)
    theirs.update(fake, real=False)
    found = squared_mmd(real.flatten(1)[:, :16], fake.flatten(1)[:, :16])
    assert found == pytest.approx(float(theirs.compute()[0]), rel=1e-5)

    x, y = cloud(9, seed=1).astype(float), cloud(7, seed=2, shift=0.3).astype(float)
    kernel = lambda a, b: (a @ b / 16 + 1) ** 3  # noqa: E731
    within = [np.mean([kernel(a, b) for i, a in enumerate(s) for j, b in enumerate(s) if i != j]) for s in (x, y)]
    between = np.mean([kernel(a, b) for a in x for b in y])
    assert squared_mmd(torch.from_numpy(x), torch.from_numpy(y)) == pytest.approx(sum(within) - 2 * between)


def test_the_error_is_that_of_the_mean() -> None:
    """Over many pairs of sets of one law the estimate is around 0, as far off as its stated error says."""
    found = np.array([kernel_distance(cloud(400, seed=2 * i), cloud(400, seed=2 * i + 1)) for i in range(100)])
    assert abs(found[:, 0].mean()) < 3 * found[:, 0].std() / 10
    assert found[:, 0].std() == pytest.approx(np.sqrt(np.mean(found[:, 1] ** 2)), rel=0.25)
    distance, error = kernel_distance(cloud(400, seed=1), cloud(300, seed=2, shift=0.5))
    assert distance > 5 * error > 0


def test_more_images_do_not_change_it_and_blocks_are_of_1000() -> None:
    few, many = (kernel_distance(cloud(n, seed=1), cloud(n, seed=2, shift=0.3)) for n in (400, 12_000))
    assert abs(few[0] - many[0]) < 4 * few[1]
    assert many[1] < few[1] / 2


def test_refuses_what_has_no_distance() -> None:
    rows = cloud(30, seed=1)
    with pytest.raises(DataError, match="same features"):
        kernel_distance(rows, rows[:, :3])
    with pytest.raises(DataError, match="blocks"):
        kernel_distance(rows, rows[:15])
    with pytest.raises(DataError, match="finite"):
        kernel_distance(rows, rows * np.nan)
