"""Ledgers of a few lines, for the tests of the ledger."""

from __future__ import annotations

from pathlib import Path

from gswgan.privacy import Gaussian, Ledger, Sampled

EVENT = Gaussian(noise_std=1.0, sensitivity=2.0)


def open_ledger(folder: Path, *, observer: str = "public", context: str = "plan", journal: bool = True) -> Ledger:
    return Ledger(
        folder / f"{observer}.jsonl",
        observer=observer,
        context=context,
        journal=folder / f"{observer}.journal" if journal else None,
    )


def filled(folder: Path, lines: int = 3) -> Path:
    ledger = open_ledger(folder)
    for step in range(lines):
        ledger.record(f"step {step}", Sampled(rate=0.1, event=EVENT), f"sum {step}")
    return ledger.path
