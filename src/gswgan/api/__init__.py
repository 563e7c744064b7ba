"""GSWGAN and what the command line shares with it: planning, running, resuming, progress."""

from __future__ import annotations

from gswgan.api.model import GSWGAN
from gswgan.api.progress import StepDone
from gswgan.api.saved import load, resume, retrain
from gswgan.api.training import Interrupted, PlannedRun

__all__ = ["GSWGAN", "Interrupted", "PlannedRun", "StepDone", "load", "resume", "retrain"]
