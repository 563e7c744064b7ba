"""`gswgan federate combine`: the operator's side of rounds by files."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from gswgan.api.progress import Watch
from gswgan.api.training import run_folder
from gswgan.cli.console import console, print_json
from gswgan.cli.federated_run import train_after_round
from gswgan.cli.running import progress_of
from gswgan.errors import FederationError
from gswgan.federated.by_files import take_answers, take_weights
from gswgan.federated.server import Round
from gswgan.federated.site_rounds import RefinedBySites, SiteRounds
from gswgan.federated.trust import is_refined
from gswgan.plan.settings import pick_device
from gswgan.run.folder import RunFolder

if TYPE_CHECKING:
    import torch


def combine_answers(folder: RunFolder, answers: Path, *, close: bool, device: str, json: bool) -> None:
    """Take the answers of sites that came by files; when all are there, or `close`, release their sum and train."""
    held, place = Round(folder, is_timed=False), pick_device(device)
    with held.held():
        if not held.is_released:
            for refused in () if held.is_closed else take_answers(held, answers):
                console.print(f"refused:   {refused}", markup=False)
            missing = sorted(held.roster - held.answered)
            console.print(f"answers:   {len(held.answered)} of {len(held.roster)}")
            if missing and not close and not held.is_closed:
                raise FederationError(
                    "answers", f"none of {', '.join(missing[:5])}" + ("..." if len(missing) > 5 else ""),
                    "one of every site", "Run it again when they are there, or pass --close to count them as zero.",
                )  # fmt: skip
            held.release()
        command = f"gswgan federate combine {folder.root} {answers}"
        if is_refined(held.plan):
            _train_with_sites(folder, place, answers, command, close=close, json=json)
        else:
            train_after_round(folder, place, command, json=json)


def _train_with_sites(
    folder: RunFolder, device: torch.device, answers: Path, command: str, *, close: bool, json: bool
) -> None:
    """Go on until sites are asked again, with what they have answered, or to the end. `close`: the round that waits."""
    rounds, plan = SiteRounds(folder), folder.plan()
    close = close and rounds.waiting is not None  # not a round that is asked for only now
    while not folder.is_finished:
        if (number := rounds.waiting) is not None:
            for refused in take_weights(rounds, answers):
                console.print(f"refused:   {refused}", markup=False)
            missing = rounds.missing(number)
            console.print(f"round {number + 1}:   {len(rounds.roster) - len(missing)} of {len(rounds.roster)} answers")
            if missing and not close:
                question = rounds.question(number)
                console.print(f"send {question} to every site (`gswgan federate answer --question`), then:\n{command}")
                if json:
                    print_json({"round": number + 1, "question": str(question), "missing": missing})
                return
            rounds.close(number)
            close = False
        with progress_of(plan) as move:
            watch, wait = Watch(step=move, note=console.print), functools.partial(RefinedBySites, rounds)
            if not run_folder(folder, None, device=device, watch=watch, answerer=wait) and rounds.waiting is None:
                break  # stopped by hand
    train_after_round(folder, device, command, json=json)
