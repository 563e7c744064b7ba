"""Does the synthetic set remember its training records? Checks for the private report only.

None of them is a bound: the guarantee is the ledger's epsilon. They would show a mistake that the ledger cannot see.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

_ROWS, _COLUMNS = 2048, 8192  # distances held at a time


def nearest_distances(images: np.ndarray, records: np.ndarray, *, device: torch.device | str = "cpu") -> np.ndarray:
    """Distance of each image to the nearest of the records, L2 on pixels in [0, 1]; float64 [n].

    Both are uint8 [n, channels, side, side]. The nearest record is found in float32; its distance is then exact, so
    that a copy is at 0.
    """
    left, right = images.reshape(len(images), -1), records.reshape(len(records), -1)
    nearest = np.empty(len(left), np.int64)
    for start in range(0, len(left), _ROWS):
        rows = torch.from_numpy(left[start : start + _ROWS]).to(device).float() / 255
        best = torch.full((len(rows),), torch.inf, device=device)
        index = torch.zeros(len(rows), dtype=torch.int64, device=device)
        for other in range(0, len(right), _COLUMNS):
            columns = torch.from_numpy(right[other : other + _COLUMNS]).to(device).float() / 255
            squares = torch.addmm(columns.square().sum(1)[None, :], rows, columns.T, alpha=-2)
            least, where = squares.min(1)
            better = least < best
            best, index = torch.where(better, least, best), torch.where(better, where + other, index)
        nearest[start : start + _ROWS] = index.cpu().numpy()
    exact = np.empty(len(left))
    for start in range(0, len(left), _ROWS):
        part = slice(start, start + _ROWS)
        gap = left[part].astype(np.int64) - right[nearest[part]]
        exact[part] = np.sqrt(np.square(gap).sum(1)) / 255
    return exact


@dataclass(frozen=True, kw_only=True)
class Nearness:
    """Median distances to the nearest record of equally many training and held-out ones."""

    train: float
    held_out: float
    closer_to_train: float
    """Share of synthetic images with a training record nearer than every held-out one; 0.5 if nothing is remembered."""


def nearness(
    synthetic: np.ndarray, train: np.ndarray, held_out: np.ndarray, *, device: torch.device | str = "cpu"
) -> Nearness:
    """Are synthetic images closer to training records than to held-out ones?

    The more records, the nearer the nearest, so the training set is taken in blocks of the size of the held-out
    set, and figures are averaged over the blocks: every training record is looked at, and no side is favoured.
    """
    size = min(len(train), len(held_out))
    rng = np.random.default_rng(0)
    train, held_out = train[rng.permutation(len(train))], held_out[rng.permutation(len(held_out))]
    to_held_out = nearest_distances(synthetic, held_out[:size], device=device)
    medians, shares = [], []
    for start in sorted({*range(0, len(train) - size, size), len(train) - size}):
        to_train = nearest_distances(synthetic, train[start : start + size], device=device)
        medians.append(float(np.median(to_train)))
        shares.append(float((to_train < to_held_out).mean() + (to_train == to_held_out).mean() / 2))
    return Nearness(
        train=float(np.mean(medians)), held_out=float(np.median(to_held_out)), closer_to_train=float(np.mean(shares))
    )


@dataclass(frozen=True, kw_only=True)
class NearestRecords:
    """Median distances to the nearest of all training records: of synthetic images, and of held-out records."""

    record: float
    record_of_held_out: float
    near_copies: float
    """Share of synthetic images that are as near to a training record as the nearest 1 % of the held-out records."""


def nearest_records(
    synthetic: np.ndarray, train: np.ndarray, held_out: np.ndarray, *, device: torch.device | str = "cpu"
) -> NearestRecords:
    """Are synthetic images nearer to a training record than real images are that were never trained on?

    Smooth images are near to everything: with them more than 1 % may be near copies though nothing is remembered.
    """
    found, usual = (nearest_distances(images, train, device=device) for images in (synthetic, held_out))
    near = np.sort(usual)[max(0, len(usual) // 100 - 1)]
    return NearestRecords(
        record=float(np.median(found)),
        record_of_held_out=float(np.median(usual)),
        near_copies=float((found <= near).mean()),
    )


@dataclass(frozen=True, kw_only=True)
class Membership:
    """How well an attacker with the synthetic set tells training records from held-out ones."""

    auc: float
    """0.5: not at all. 1: always."""
    tpr_at_1_percent_fpr: float
    """Share of training records found while at most 1 % of the others are accused; 0.01 by guessing."""
    members: int
    non_members: int


def membership_scores(
    synthetic: np.ndarray, records: np.ndarray, public: np.ndarray, *, device: torch.device | str = "cpu"
) -> np.ndarray:
    """The attacker's belief that each record was trained on: how near it lies to the synthetic set for such a record.

    Some records (a plain stroke) are near to everything, so the distance is taken relative to the distance to the
    attacker's own `public` records of the same kind.
    """
    usual = nearest_distances(records, public, device=device)
    return -nearest_distances(records, synthetic, device=device) / np.maximum(usual, 1 / 255)


def membership(
    synthetic: np.ndarray,
    train: np.ndarray,
    held_out: np.ndarray,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Membership:
    """AUC and TPR at 1 % FPR of the attack. Half of the held-out records are the attacker's own, half are accused."""
    order = np.random.default_rng(seed).permutation(len(held_out))
    public, others = held_out[order[::2]], held_out[order[1::2]]
    members = membership_scores(synthetic, train, public, device=device)
    non_members = membership_scores(synthetic, others, public, device=device)
    return Membership(
        auc=auc(members, non_members), tpr_at_1_percent_fpr=tpr_at(members, non_members, 0.01), members=len(members),
        non_members=len(non_members),
    )  # fmt: skip


def auc(members: np.ndarray, non_members: np.ndarray) -> float:
    """Probability that a member has the higher score; a tie counts half."""
    ordered = np.sort(non_members)
    below, up_to = np.searchsorted(ordered, members, "left"), np.searchsorted(ordered, members, "right")
    return float((below + up_to).mean() / 2 / len(ordered))


def tpr_at(members: np.ndarray, non_members: np.ndarray, false_positive_rate: float) -> float:
    """Share of members above the lowest threshold that accuses at most this share of the others."""
    allowed = int(false_positive_rate * len(non_members))
    threshold = np.sort(non_members)[::-1][allowed]  # at most `allowed` of them are strictly above
    return float((members > threshold).mean())
