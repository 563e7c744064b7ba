"""Samples as a torch data set that is drawn while it is read."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from gswgan.plan.settings import check_whole
from gswgan.run.released import Labels, ReleasedModel

IMAGES_PER_DRAW = 256
MAX_IMAGES = 10**9


class SampleDataset(IterableDataset[tuple[torch.Tensor, int]]):
    """`n` samples: images as float tensors [c, h, w] from 0 to 1, with their labels, in a random order.

    No image is kept: each pass draws new ones, with a `seed` the same ones. The workers of a DataLoader share the `n`
    images among themselves.
    """

    def __init__(self, model: ReleasedModel, n: int, labels: Labels | None = None, *, seed: int | None = None) -> None:
        self.n = check_whole("n", n, 1, MAX_IMAGES)
        self.seed = None if seed is None else check_whole("seed", seed, 0, 2**63 - 1)
        self.classes = list(model.plan.facts.class_names)
        self._model, self._labels = model, labels
        model.choose_labels(self.n, labels, np.random.default_rng(0))  # refuse wrong labels now, not in a worker

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        worker = get_worker_info()
        part, parts = (0, 1) if worker is None else (worker.id, worker.num_workers)
        fresh = secrets.randbits(63) if worker is None else worker.seed - worker.id  # one for all workers
        seed = fresh if self.seed is None else self.seed
        labels = self._model.choose_labels(self.n, self._labels, np.random.default_rng([seed]))[part::parts]
        draws = np.random.default_rng([seed, part])
        for start in range(0, len(labels), IMAGES_PER_DRAW):
            wanted = labels[start : start + IMAGES_PER_DRAW]
            images, _ = self._model.sample(len(wanted), wanted, seed=int(draws.integers(2**62)))
            pixels = torch.from_numpy(images).to(torch.float32) / 255
            yield from zip(pixels[:, None] if pixels.ndim == 3 else pixels.movedim(3, 1), wanted.tolist())
