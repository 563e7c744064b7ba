"""The disjoint subsets S_k of the records, one per critic (Algorithm 1, line 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gswgan.data import ImageData, partition, partition_persons


@dataclass(frozen=True, kw_only=True)
class Partitions:
    """The records that each critic may see: the first sizes[k] entries of row k of `table` [K, largest size]."""

    table: Tensor
    sizes: np.ndarray

    @classmethod
    def of(cls, data: ImageData, count: int, seed: int, device: torch.device) -> Partitions:
        """Partition by index alone (or by person), so that one record's content never moves another record."""
        if data.persons is None:
            parts: list[np.ndarray] = list(partition(data.n, count, seed=seed).indices)
        else:
            parts = list(partition_persons(data.persons, count, seed=seed, number=data.number_of_persons).indices)
        sizes = np.array([len(part) for part in parts])
        table = np.stack([np.resize(part, max(1, sizes.max())) for part in parts])
        return cls(table=torch.from_numpy(table).to(device), sizes=sizes)

    def part(self, held: range) -> tuple[Partitions, np.ndarray]:
        """Return the partitions of some critics, and the records in them; the table then refers to these records."""
        own = slice(held.start, held.stop)
        rows, places = torch.unique(self.table[own], return_inverse=True)
        return Partitions(table=places, sizes=self.sizes[own]), rows.cpu().numpy()
