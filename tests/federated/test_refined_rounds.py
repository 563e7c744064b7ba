"""What sites and operator do in rounds of DP-SGD (preset refined), against the same computed by hand."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load
from safetensors.torch import load_file
from test_refined_by_files import STEPS, answer, begun, combine, ledger_of
from test_silos_by_files import NAMES, site

from gswgan.critics.refined.records import gradients_of
from gswgan.critics.refined.sites import SiteSteps, farther
from gswgan.errors import FederationError, RunError
from gswgan.federated.site import check_site, client_of, read_file
from gswgan.federated.site_rounds import SiteRounds
from gswgan.federated.site_steps import (
    Turn,
    check_weights,
    denoiser_of,
    numbers_of,
    planned_steps,
    read_turn,
    refined_settings,
    sizes_of,
    steps_of,
)
from gswgan.generators.preconditioner import preconditioner_of
from gswgan.privacy import BatchStreams, GaussianMechanism, Ledger
from gswgan.privacy.randomness import load_key
from gswgan.run.folder import RunFolder


def test_two_answers_of_one_site_stop_a_round_whichever_came_first(tmp_path: Path) -> None:
    """Which one is the site's is not known: a forged file must not count because it came early."""
    plan = begun(tmp_path)
    honest = answer(tmp_path, "north", number=1)
    raw = bytearray(honest.read_bytes())
    raw[-1] ^= 1  # of the last weight
    forged = tmp_path / "answers/another.safetensors"
    forged.write_bytes(bytes(raw))
    with pytest.raises(FederationError, match="these differ"):
        combine(tmp_path, "--close")
    honest.rename(tmp_path / "kept")
    with pytest.raises(FederationError, match=f"at least {len(NAMES)}, as planned"):
        combine(tmp_path, "--close")  # takes it, and wants the others
    (tmp_path / "kept").rename(honest)
    with pytest.raises(FederationError, match="these differ"):
        combine(tmp_path, "--close")
    forged.unlink()
    rounds = SiteRounds(RunFolder(tmp_path / "RUN"))
    with pytest.raises(FederationError, match="these differ"):
        combine(tmp_path)
    rounds._path(0, "north").unlink()
    for name in NAMES[1:]:
        answer(tmp_path, name, number=1)
    combine(tmp_path)
    assert rounds.answers(0) is not None
    rounds._path(0, "north").write_bytes(bytes(4 * numbers_of(plan)[0]))
    with pytest.raises(RunError, match="the answer that was taken"):
        rounds.answers(0)


def test_a_round_averages_what_sites_sent_and_publishes_the_average(tmp_path: Path) -> None:
    plan = begun(tmp_path)
    sizes, sent = sizes_of(plan), []
    for number, steps in enumerate(steps_of(plan), start=1):
        turn = read_turn(tmp_path / f"RUN/round-{number}.safetensors", plan)
        if sent:  # the question is the average of the last answers
            assert torch.allclose(turn.weights, sent[-1][0], rtol=0, atol=1e-7)
        found = {}
        for name in NAMES:
            raw = load(answer(tmp_path, name, number=number).read_bytes())["sums"].tobytes()
            found[name] = torch.from_numpy(np.frombuffer(raw, "<f4").copy()).double()
        mean = sum(found[name] * sizes[name] for name in NAMES) / sum(sizes.values())
        assert not torch.allclose(mean.float(), turn.weights, rtol=0, atol=1e-5)
        sent.append((mean.float(), math.prod(planned_steps(plan).kept(step) for step in steps)))
        combine(tmp_path)
    denoised = load_file(RunFolder(tmp_path / "RUN").generator)
    published = torch.cat([value.flatten() for value in denoised.values()])
    (first, _), (last, kept) = sent
    assert planned_steps(plan).kept(0) == 0.0  # so the first average is the first mean
    expected = torch.lerp(first, last, 1 - kept)
    names = list(dict(denoiser_of(plan, torch.device("meta")).named_parameters()))
    published = torch.cat([denoised[name].flatten() for name in names])
    assert torch.allclose(published, expected, rtol=0, atol=1e-6)


def test_a_site_goes_on_with_the_momentum_and_the_axes_of_the_rounds_before(tmp_path: Path) -> None:
    """Two rounds, where the second begins at what the site has sent, are one long round."""
    plan = begun(tmp_path)
    turn, folder = read_turn(tmp_path / "RUN/round-1.safetensors", plan), ledger_of(tmp_path, "north").parent
    raw = load(answer(tmp_path, "north", number=1).read_bytes())["sums"].tobytes()
    secret = load_key(folder / "key.json", plan.digest())
    own = torch.from_numpy(np.frombuffer(raw, "<f4").copy())
    Turn(number=1, weights=own, axes={}).save(tmp_path / "RUN/round-2.safetensors", plan)
    last = load(answer(tmp_path, "north", number=2).read_bytes())["sums"].tobytes()

    data = client_of(check_site(read_file(site(tmp_path, "north"))))._records(plan)
    device = torch.device("cpu")
    network = denoiser_of(plan, device)
    axes = preconditioner_of(network, device)
    axes.load_state(dict(turn.axes))
    ledger = Ledger(tmp_path / "again.jsonl", observer="server", context=plan.digest(), journal=tmp_path / "journal")
    mechanism = GaussianMechanism(
        contribution=plan.sums.contribution, event=plan.sums.event, ledger=ledger, streams=secret
    )
    straight = SiteSteps(
        planned_steps(plan), data, mechanism, BatchStreams(secret), network=network, preconditioner=axes,
        gradients=gradients_of(refined_settings(plan), network), farther=farther(sizes_of(plan)),
    )  # fmt: skip
    assert straight.answer(turn.weights, range(STEPS)).numpy().astype("<f4").tobytes() == last


def test_weights_that_no_steps_lead_to_are_refused(tmp_path: Path) -> None:
    plan = begun(tmp_path)
    question = tmp_path / "RUN/round-1.safetensors"
    turn = read_turn(question, plan)
    for wrong in (turn.weights + 1.0, turn.weights * math.inf, turn.weights * math.nan):
        with pytest.raises(FederationError, match="too far away, or not numbers"):
            check_weights(plan, wrong.numpy().tobytes(), turn.weights, steps_of(plan)[0])
    for wrong in (turn.weights.double(), turn.weights * math.nan):
        dataclasses.replace(turn, weights=wrong).save(question, plan)
        with pytest.raises(FederationError, match="finite, of the planned shapes"):
            read_turn(question, plan)
    (ledger_of(tmp_path, "north").parent / "steps.safetensors").write_bytes(b"damaged")
    turn.save(question, plan)
    with pytest.raises(FederationError, match="no round goes on without it"):
        answer(tmp_path, "north", number=1)
