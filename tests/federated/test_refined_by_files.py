"""Preset refined over three sites by files, with the commands: rounds of DP-SGD after the kernel's round."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from safetensors.numpy import load
from test_silos_by_files import NAMES, ask, call, make_sites, site
from works import small_refined

from gswgan.critics.refined.sites import SiteSteps
from gswgan.errors import DataError, FederationError
from gswgan.federated.memory import home_of
from gswgan.federated.server import create_run
from gswgan.federated.silos import silo_facts
from gswgan.federated.site import check_site, client_of, read_file
from gswgan.federated.site_steps import read_turn
from gswgan.federated.trust import make_federated_plan
from gswgan.plan.facts import Site
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant
from gswgan.privacy.ledger import compose, read_ledger
from gswgan.run.folder import RunFolder

STEPS, ROUNDS = 5, 2


def make_run(root: Path, sizes: dict[str, int], *, epsilon: float = 20.0, min_sites: int | None = None) -> Plan:
    """The plan of the commands, made small where no guarantee depends on it."""
    sites = [Site(name=name, records=size) for name, size in sorted(sizes.items())]
    facts = silo_facts(
        sites, min_sites=min_sites, data="digits", class_names=tuple(f"digit {n}" for n in range(10)), image_size=8,
        channels=1,
    )  # fmt: skip
    asked = {"preset": "refined", "steps": STEPS, "rounds": ROUNDS, "epsilon": epsilon, "delta": 1e-5}
    plan = small_refined(make_federated_plan(facts, **asked), steps=2)
    create_run(root / "RUN", plan, tuple(sizes), 600.0)
    plan.save(root / "RUN/plan.json")
    return plan


def answer(root: Path, name: str, *, number: int | None = None, **more: object) -> Path:
    out = root / "answers" / f"{name}-{number}.safetensors"
    out.parent.mkdir(exist_ok=True)
    question = [] if number is None else ["--question", root / "RUN" / f"round-{number}.safetensors"]
    call("federate", "answer", root / "RUN/plan.json", "--site", site(root, name, **more), "--out", out, *question)
    return out


def combine(root: Path, *options: object) -> str:
    return call("federate", "combine", root / "RUN", root / "answers", "--device", "cpu", *options)


def ledger_of(root: Path, name: str) -> Path:
    (found,) = home_of(root / name / "state", name).glob("*/ledger.jsonl")
    return found


def test_a_consortium_refines_by_files(tmp_path: Path) -> None:
    sizes = make_sites(tmp_path)
    plan = make_run(tmp_path, sizes)
    seen = ask("federate", "inspect", tmp_path / "RUN/plan.json", "--site", site(tmp_path, "north"))
    assert any("2 more messages" in line for line in seen["who_learns_what"])
    assert seen["guarantee"]["observer"] == "server"
    for name in NAMES:
        answer(tmp_path, name)
    for number in range(1, ROUNDS + 1):
        shown = combine(tmp_path)
        assert f"round-{number}.safetensors to every site" in " ".join(shown.split())
        assert not RunFolder(tmp_path / "RUN").is_finished
        for name in NAMES:
            given = answer(tmp_path, name, number=number).read_bytes()
        stray = given.replace(plan.digest().encode(), bytes(64).hex().encode()[: len(plan.digest())])
        assert stray != given
        (tmp_path / "answers/stray.safetensors").write_bytes(stray)  # of another plan: it blocks nobody
    combine(tmp_path)
    statement = json.loads(RunFolder(tmp_path / "RUN").privacy.read_text())
    assert statement["epsilon"] == pytest.approx(plan.cost.epsilon)
    assert any("5 steps of DP-SGD at each site in 2 rounds" in line for line in statement["sites"]["text"])
    call("release", tmp_path / "RUN", "--out", tmp_path / "bundle")
    for name in NAMES:
        _, entries, _ = read_ledger(ledger_of(tmp_path, name))
        assert [entry.name for entry in entries] == ["embedding", *(f"step {step}" for step in range(STEPS))]
        assert Accountant().epsilon(compose(entries), 1e-5) == pytest.approx(plan.cost.epsilon)
        found = ask("verify", tmp_path / "bundle", "--site", tmp_path / name / "state")
        assert (found["verified"], found["site"]["disagreements"]) == (True, [])
        assert found["site"]["epsilon"] == pytest.approx(plan.cost.epsilon, rel=1e-3)
        assert not list(ledger_of(tmp_path, name).parent.glob("key.json"))  # erased with the last answer
        (told,) = ask("federate", "status", tmp_path / name / "state")["clients"]
        assert (told["answers"], told["spent_epsilon"]) == (STEPS + 1, pytest.approx(plan.cost.epsilon, rel=1e-3))


def begun(tmp_path: Path, **options: object) -> Plan:
    """A run that waits for the answers to its first round."""
    plan = make_run(tmp_path, make_sites(tmp_path), **options)  # type: ignore[arg-type]
    for name in NAMES:
        answer(tmp_path, name)
    combine(tmp_path)
    return plan


def test_a_site_answers_each_round_once_and_in_order(tmp_path: Path) -> None:
    plan = begun(tmp_path)
    question, lines = tmp_path / "RUN/round-1.safetensors", lambda: len(read_ledger(ledger_of(tmp_path, "north"))[1])
    first = answer(tmp_path, "north", number=1).read_bytes()
    assert lines() == 4  # the embedding and three steps
    (tmp_path / "answers/north-1.safetensors").unlink()
    assert answer(tmp_path, "north", number=1).read_bytes() == first  # asked the same again: what it has kept
    turn = read_turn(question, plan)
    dataclasses.replace(turn, weights=turn.weights + 0.1).save(question, plan)
    (tmp_path / "answers/north-1.safetensors").unlink()
    with pytest.raises(FederationError, match="the same question again"):
        answer(tmp_path, "north", number=1)
    dataclasses.replace(turn, number=1, axes={}).save(question, plan)
    with pytest.raises(FederationError, match="round 1, after the answer"):
        answer(tmp_path, "south", number=1)
    assert lines() == 4
    dataclasses.replace(turn, weights=turn.weights[1:]).save(question, plan)
    with pytest.raises(FederationError, match="of the planned shapes"):
        answer(tmp_path, "south", number=1)


def test_a_site_that_dies_in_a_round_sends_the_same_bytes_and_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path)
    real, sent = SiteSteps.answer, []

    def dying(self, weights, steps):
        sent.append(real(self, weights, steps).numpy().tobytes())
        raise RuntimeError("dead")

    monkeypatch.setattr(SiteSteps, "answer", dying)
    with pytest.raises(RuntimeError, match="dead"):
        answer(tmp_path, "north", number=1)
    monkeypatch.setattr(SiteSteps, "answer", real)
    before = ledger_of(tmp_path, "north").read_bytes()
    out = answer(tmp_path, "north", number=1)
    assert ledger_of(tmp_path, "north").read_bytes() == before
    assert load(out.read_bytes())["sums"].tobytes() == sent[0]


def test_rounds_are_about_one_set_of_records_each_with_a_name_of_its_own(tmp_path: Path) -> None:
    begun(tmp_path)
    images = sorted((tmp_path / "north/images").rglob("*.png"))
    first = images[0].read_bytes()
    images[0].write_bytes(images[1].read_bytes())
    with pytest.raises(FederationError, match="records of the rounds before"):
        answer(tmp_path, "north", number=1)
    images[0].write_bytes(first)
    answer(tmp_path, "north", number=1)
    images = sorted((tmp_path / "south/images").rglob("*.png"))
    other = next(path for path in images if path.parent != images[0].parent)
    other.rename(other.with_name(images[0].name))  # a name in two classes: a label would change the places of others
    with pytest.raises(DataError, match="file names in several class folders"):
        answer(tmp_path, "south", number=1)


def test_a_site_that_cannot_read_its_records_answers_all_the_same(tmp_path: Path) -> None:
    plan = begun(tmp_path)
    client = client_of(check_site(read_file(site(tmp_path, "west"))))
    client._read = lambda facts: 1 / 0  # type: ignore[assignment, return-value]
    question = read_turn(tmp_path / "RUN/round-1.safetensors", plan)
    assert len(client.answer(plan, question)) == 4 * len(question.weights)
    assert len(read_ledger(ledger_of(tmp_path, "west"))[1]) == 4


def test_garbage_is_refused_and_a_missing_site_is_left_out_if_the_plan_allows_it(tmp_path: Path) -> None:
    begun(tmp_path, min_sites=2)
    for name in NAMES:
        answer(tmp_path, name, number=1)
    west = tmp_path / "answers/west-1.safetensors"
    good = west.read_bytes()
    west.write_bytes(good[:-400] + b"\xff" * 400)  # numbers that are none
    shown = combine(tmp_path)
    assert "west-1.safetensors" in shown
    assert "2 of 3 answers" in shown
    west.unlink()
    combine(tmp_path, "--close")
    for name in NAMES[:2]:
        answer(tmp_path, name, number=2)
    combine(tmp_path, "--close")
    assert RunFolder(tmp_path / "RUN").is_finished
    call("release", tmp_path / "RUN", "--out", tmp_path / "bundle")
    told = json.loads((tmp_path / "bundle/privacy.json").read_text())["sites"]
    assert told["rounds"] == [list(NAMES[:2])] * 2
    assert "not in round 1 of DP-SGD: west" in told["text"]
    assert ask("verify", tmp_path / "bundle", "--site", tmp_path / "north/state")["site"]["disagreements"] == []


def test_close_ends_the_round_that_waits_and_not_one_that_is_asked_for_only_then(tmp_path: Path) -> None:
    make_run(tmp_path, make_sites(tmp_path), min_sites=2)
    for name in NAMES[:2]:
        answer(tmp_path, name)
    assert "0 of 2 answers" in combine(tmp_path, "--close")  # the kernel's round
    for name in NAMES[:2]:
        answer(tmp_path, name, number=1)
    assert "0 of 2 answers" in combine(tmp_path, "--close")  # the first of DP-SGD


def test_a_round_that_is_taken_again_with_other_answers_counts_again_in_all_of_the_statement(tmp_path: Path) -> None:
    plan = begun(tmp_path, min_sites=2)
    for name in NAMES:
        answer(tmp_path, name, number=1)
    combine(tmp_path)
    folder = RunFolder(tmp_path / "RUN")  # from here on as an older copy of it, but for the ledger and its journal
    lost = [folder.checkpoint, folder.root / "round-2.safetensors", *folder.private.glob("rounds/1/*")]
    for path in (*lost, tmp_path / "answers/west-1.safetensors"):
        path.unlink()
    combine(tmp_path, "--close")
    for name in NAMES[:2]:
        answer(tmp_path, name, number=2)
    combine(tmp_path, "--close")
    statement = json.loads(folder.privacy.read_text())
    assert statement["epsilon"] > 1.1 * plan.cost.epsilon
    assert {one["epsilon"] for one in statement["guarantees"]} == {statement["epsilon"]}
    assert {one["accountant"] for one in statement["guarantees"]} == {statement["accountant"]}
    call("release", tmp_path / "RUN", "--out", tmp_path / "bundle")
    assert ask("verify", tmp_path / "bundle")["verified"]


@pytest.mark.parametrize(
    "options",
    [
        {"trust": "trusted-aggregator"},
        {"rounds": STEPS + 1},
        {"rate": 0.5},
    ],
)
def test_what_preset_refined_does_not_do_is_refused(options: dict) -> None:
    facts = silo_facts(
        [Site(name="a", records=500), Site(name="b", records=500)], min_sites=None, data="x", class_names=("0", "1"),
        image_size=8, channels=1,
    )  # fmt: skip
    with pytest.raises(Exception, match=r"untrusted server|rounds"):
        make_federated_plan(facts, preset="refined", epsilon=10, delta=1e-5, **{"steps": STEPS} | options)
