"""Noise and noise levels for a denoiser's loss: each number belongs to a seed, a record and a place alone.

So a record meets the same noise whoever else takes part in a step, and again when the step is repeated. It is training
noise, which the guarantee does not rest on: a fast generator (SplitMix64, Steele et al. 2014) on the device will do.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEVEL_MEAN, LEVEL_STD = -0.8, 1.2
"""Of ln(noise level): a normal law."""

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_CHOICE = 0x2545F4914F6CDD1D  # tells the bits that choose records from those of the noise
_FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


def _mixed(values: Tensor) -> Tensor:
    """64 well-mixed bits for each 64-bit integer, as signed integers that wrap around."""
    values = (values ^ ((values >> 30) & (2**34 - 1))) * _FACTORS[0]
    values = (values ^ ((values >> 27) & (2**37 - 1))) * _FACTORS[1]
    return values ^ ((values >> 31) & (2**33 - 1))


def _bits(seed: Tensor, records: Tensor, count: int) -> Tensor:
    """[n, count] integers of 64 bits for the records [n]."""
    own = _mixed(_mixed(seed) + (records + 1) * _GOLDEN)
    place = (torch.arange(count, device=records.device) + 1) * _GOLDEN
    return _mixed(own[:, None] + place)


def _halves(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Two uniform numbers in (0, 1) of each 64 bits."""
    high, low = (bits >> 40) & (2**24 - 1), (bits >> 8) & (2**24 - 1)
    return (high.float() + 0.5) * 2.0**-24, (low.float() + 0.5) * 2.0**-24


def normal_noise(seed: Tensor, records: Tensor, count: int) -> Tensor:
    """[n, count] standard normal numbers (Box and Muller)."""
    size, turn = _halves(_bits(seed, records, count))
    return (-2 * size.log()).sqrt() * (2 * math.pi * turn).cos()


def places(seed: Tensor, units: Tensor, below: Tensor) -> Tensor:
    """[n] whole numbers from 0 to `below` [n], which is not among them: one for each of the units [n]."""
    return ((_bits(seed ^ _CHOICE, units, 1)[:, 0] >> 32) & (2**32 - 1)) % below


def noise_levels(
    seed: Tensor, records: Tensor, draws: int, *, mean: float = LEVEL_MEAN, std: float = LEVEL_STD
) -> Tensor:
    """[n, draws] noise levels, one in each of `draws` equally likely intervals: as even a mixture as can be.

    ln(noise level) is normal with this mean and standard deviation.
    """
    shift, _ = _halves(_bits(seed ^ 0x5DEECE66D, records, draws))
    place = (torch.arange(draws, device=records.device) + shift) / draws
    quantile = math.sqrt(2) * torch.erfinv((2 * place - 1).clamp(-1 + 1e-6, 1 - 1e-6))
    return (mean + std * quantile).exp()
