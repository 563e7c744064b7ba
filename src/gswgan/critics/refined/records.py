"""The records that a process holds, and noisy sums of their gradients; with `torchrun` each rank holds some of them.

Where persons are protected, a person takes part, and a row is that of the person's own records (`persons.py`).

Rank 0 has the run folder, the ledger and the generator, trains with the kernel critic and pre-trains. In a step of
DP-SGD it sends the denoiser's weights (public: all that they are made of was released) and who takes part to all ranks.
Each of them clips and sums the gradients of its own records on the mechanism's grid, in integers; the sums are added
up, and rank 0 alone records the answer and adds the noise. Chunks have one size however many ranks there are, so the
answer does not depend on them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.dp_sgd import RecordGradients
from gswgan.critics.ensemble.distributed import Ranks
from gswgan.critics.ensemble.ensemble import Mechanism
from gswgan.critics.refined.gradients import Gradients
from gswgan.critics.refined.persons import OwnRecords
from gswgan.critics.refined.settings import RefinedSettings
from gswgan.data import ImageData
from gswgan.generators.denoised import DenoisedSampler
from gswgan.generators.preconditioner import Preconditioner, preconditioner_of
from gswgan.generators.scaled_descent import put_weights, weights_of
from gswgan.privacy.randomness import BatchStreams

NUMBERS_PER_CHUNK = {"cpu": 2**24, "cuda": 2**29}
"""Numbers in the gradients of a chunk of records, at the most, by the device; fewer above 32x32, by the pixels."""


class HeldRecords:
    """The records of this process: all of them, where it is the only one."""

    def __init__(self, data: ImageData, device: torch.device, ranks: Ranks | None = None) -> None:
        """The records go to the device."""
        self.total = data.n if data.persons is None else data.number_of_persons  # of those who take part by coins
        self.held = range(self.total) if ranks is None else ranks.held(self.total)
        labels = np.zeros(data.n, np.int64) if data.labels is None else data.labels
        self._own = None if data.persons is None else OwnRecords(data, self.held, device)
        own = slice(self.held.start, self.held.stop) if self._own is None else self._own.order
        held = [part[own] for part in (data.images, labels)]
        if self._own is not None:  # for whoever has no record: a black image, whose row is left out
            held = [np.concatenate([part, np.zeros_like(part, shape=(1, *part.shape[1:]))]) for part in held]
        self.images, labels_held = (torch.from_numpy(part).to(device) for part in held)
        self._valid = (labels_held >= 0) & (labels_held < data.classes)  # others add nothing: no label raises
        self.labels = labels_held.clamp(0, data.classes - 1)
        self.device = device

    def begin(
        self, network: DenoisedSampler, preconditioner: Preconditioner, gradients: Gradients, mechanism: Mechanism,
        *, at_once: bool = True,
    ) -> None:  # fmt: skip
        """Gradients are those of this network, as it is in each step.

        `at_once`: whether a CPU may compute several chunks at once, which takes several times the memory.
        """
        self._preconditioner, self._gradients = preconditioner, gradients
        self.descent = RecordGradients(network, mechanism, held=self.held, at_once=at_once)
        numbers = int(NUMBERS_PER_CHUNK[self.device.type] * min(1.0, (32 / self.images.shape[-1]) ** 2))
        self.descent.prepare(self.total, numbers_per_chunk=numbers)

    def answer(self, step: int, batches: BatchStreams) -> Tensor:
        """The noisy mean gradient of a step, [P], in the preconditioner's coordinates."""
        seed = torch.tensor(int(batches.generator("draws", step).integers(2**62))).to(self.device)

        def rows(members: np.ndarray) -> Tensor:
            unit = torch.from_numpy(members).to(self.device)
            held = unit - self.held.start
            own = held if self._own is None else self._own.of_draws(held, unit, seed, self._gradients.draws).flatten()
            found = self._preconditioner.forward(
                self._gradients.of_records(self.images[own], self.labels[own], unit, seed)
            )
            there = self._valid[held] if self._own is None else self._own.count[held] > 0
            return torch.where(there[:, None], found, 0.0)

        return self.descent.answer(f"step {step}", rows)


def gradients_of(settings: RefinedSettings, network: DenoisedSampler) -> Gradients:
    """The gradients of the denoiser's loss that the settings ask for."""
    return Gradients(
        network.denoiser, draws=settings.draws, level_mean=settings.level_mean, level_std=settings.level_std
    )


def send_weights(ranks: Ranks, network: DenoisedSampler, preconditioner: Preconditioner | None, step: int) -> None:
    """From rank 0: the weights of a step, and once the preconditioner, which does not change after the first."""
    ranks.broadcast(do="records", step=step, preconditioner=preconditioner is not None)
    ranks.broadcast_tensor(weights_of(network))
    for value in () if preconditioner is None else preconditioner.state().values():
        ranks.broadcast_tensor(value)


def _receive_weights(ranks: Ranks, network: DenoisedSampler, preconditioner: Preconditioner | None) -> None:
    put_weights(network, ranks.broadcast_tensor(weights_of(network)))
    if preconditioner is not None:
        preconditioner.load_state({name: ranks.broadcast_tensor(v) for name, v in preconditioner.state().items()})


def hold_records(
    ranks: Ranks, settings: RefinedSettings, network: DenoisedSampler, data: ImageData, mechanism: Mechanism,
    batches: BatchStreams,
) -> None:  # fmt: skip
    """Hold some of the records at a rank other than 0 and follow its commands until the run is over."""
    device = next(network.parameters()).device
    records, preconditioner = HeldRecords(data, device, ranks), preconditioner_of(network, device)
    records.begin(network, preconditioner, gradients_of(settings, network), mechanism)
    while (command := ranks.receive())["do"] != "end":
        _receive_weights(ranks, network, preconditioner if command["preconditioner"] else None)
        records.answer(command["step"], batches)
