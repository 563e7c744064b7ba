"""The kernel critic's round by files: the same bytes as any other round, and nothing that a file can break."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rounds import answer_all, flower, simulate, why_refused
from typer.testing import CliRunner

from conftest import write_persons
from gswgan.cli.main import app
from gswgan.data import clients, dirichlet_clients, load_data
from gswgan.errors import FederationError, GswganError, PlanError
from gswgan.federated.client import Client
from gswgan.federated.memory import Cap, Memory, home_of
from gswgan.federated.messages import question
from gswgan.federated.own_ledger import OwnLedger
from gswgan.federated.server import Round, create_run
from gswgan.federated.trust import trust_of
from gswgan.methods import read_plan
from gswgan.plan.plan import Plan
from gswgan.privacy.randomness import create_key
from gswgan.privacy.storage import make_folder
from gswgan.release.pack import pack
from gswgan.release.verify import verify
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run

SITES = ("north", "south", "west")
SAME = (
    "embedding.safetensors", "generator.safetensors", "ledger.jsonl", "privacy.json", "federation.json", "samples.png"
)  # fmt: skip


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["federate", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def ask(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["federate", *map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def plant_keys(run: Path, homes: dict[str, Path], plan: Plan) -> None:
    """The keys of the server and of every site, made before they would make their own: a round can be held twice."""

    def plant(path: Path, whose: str) -> None:
        make_folder(path.parent, private=True)
        create_key(path, plan.digest(), secret=hashlib.blake2b(whose.encode(), digest_size=32).digest())

    plant(RunFolder(run).key, "server")
    for name, state in homes.items():
        make_folder(home_of(state, name), private=True)
        plant(home_of(state, name) / plan.digest()[:32] / "key.json", name)


def contents(home: Path) -> dict[str, bytes]:
    """What a site keeps of its answers: ledger, journal and the answer itself."""
    return {path.name: path.read_bytes() for path in home.glob("*/*")}


def sites(root: Path) -> dict[str, Any]:
    """The digits at three sites, each with a file of its own."""
    data = dirichlet_clients(load_data("digits"), len(SITES), concentration=100.0, seed=0)
    found = {name: mine for name, (_, mine) in zip(SITES, clients(data))}
    for name, mine in found.items():
        np.savez(root / f"{name}.npz", images=mine.images[:, 0], labels=mine.labels)
    return found


def planned(root: Path, *options: object) -> Path:
    (root / "clients.txt").write_text("\n".join(SITES))
    facts = ("--clients", root / "clients.txt", "--classes", 10, "--image-size", 8, "--steps", 20, "--delta", 1e-5)
    assert "send" in call("plan", *facts, "--force-spend", "--out", root / "RUN", *options)
    return root / "RUN"


def site(root: Path, name: str, trust: str, epsilon: float = 1000.0) -> Path:
    path = root / f"{name}.toml"
    path.write_text(
        f'client = "{name}"\ndata = "{root / name}.npz"\nstate = "{root / "state" / name}"\ntrust = "{trust}"\n'
        f'epsilon = {epsilon}\ndelta = 1e-5\nclasses = 10\nneighbours = '
        f'"{"zeroed" if trust == "trusted-aggregator" else "replace-one"}"\n'
    )  # fmt: skip
    return path


def hold_by_messages(root: Path, plan: Plan, mine: dict[str, Any]) -> None:
    """The same round with its clients in this process."""
    run_folder = create_run(root / "other", plan, SITES, 600)
    plant_keys(root / "other", dict.fromkeys(SITES, run_folder.private / "clients"), plan)
    held, cost = Round(run_folder), plan.guarantee
    cap = Cap(epsilon=cost.epsilon, delta=cost.delta, neighbours=cost.neighbours)
    answer_all(held, {
        name: Client(name, mine[name], run_folder.private / "clients", trust=trust_of(plan), cap=cap) for name in SITES
    })  # fmt: skip
    held.release()
    assert run(run_folder, None, device=torch.device("cpu"))


def hold_by_flower(root: Path, plan: Plan, mine: dict[str, Any]) -> None:
    """The same round on Flower's engine, by the command."""
    images = np.concatenate([mine[name].images[:, 0] for name in SITES])
    np.savez(root / "all.npz", images=images, labels=np.concatenate([mine[name].labels for name in SITES]))
    table = write_persons(root / "ids.csv", [name for name in SITES for _ in range(mine[name].n)])
    source = {"spec": str(root / "all.npz"), "classes": 10, "image_size": None, "group_by": str(table)}
    run_folder = create_run(root / "other", plan, SITES, 600, source=source)
    plant_keys(root / "other", dict.fromkeys(SITES, run_folder.private / "clients"), plan)
    simulate(root, "--resume", str(root / "other"), "--device", "cpu")
    rows = [json.loads(line) for line in (run_folder.private / "answers.jsonl").read_text().splitlines()]
    assert sorted(row["client"] for row in rows if "digest" in row) == sorted(SITES)
    assert all(row["up"] > 0 for row in rows)  # they came through Flower


@pytest.mark.parametrize(
    ("trust", "hold"),
    [
        ("trusted-aggregator", hold_by_messages),
        pytest.param("trusted-aggregator", hold_by_flower, marks=[flower, pytest.mark.slow]),
        pytest.param("untrusted-server", hold_by_flower, marks=flower),
    ],
)
def test_three_sites_by_files_release_what_the_round_over_messages_does(tmp_path: Path, trust: str, hold: Any):
    mine = sites(tmp_path)
    out = planned(tmp_path, "--trust", trust, "--epsilon", 500)
    plan = read_plan(out / "plan.json")
    assert plan == RunFolder(out).plan()
    plant_keys(out, {name: tmp_path / "state" / name for name in SITES}, plan)
    (tmp_path / "answers").mkdir()
    for name in SITES:
        answer = tmp_path / "answers" / f"{name}.safetensors"
        shown = call("answer", out / "plan.json", "--site", site(tmp_path, name, trust), "--out", answer)
        assert ("NO guarantee" in shown) == (trust == "trusted-aggregator")
        assert "0 spent so far" in shown
    shown = call("combine", out, tmp_path / "answers", "--device", "cpu")
    assert "answers:   3 of 3" in shown

    hold(tmp_path, plan, mine)
    for file in SAME:
        assert (out / "release" / file).read_bytes() == (tmp_path / "other/release" / file).read_bytes(), file
    for name in SITES:  # also what the sites keep
        by_files = contents(home_of(tmp_path / "state" / name, name))
        assert by_files == contents(home_of(tmp_path / "other/private/clients", name))
        assert {"ledger.jsonl", "answer.bin"} <= by_files.keys()
    for folder in (out, tmp_path / "other"):
        pack(folder, folder.with_suffix(".packed"))
        assert verify(folder.with_suffix(".packed")).findings == ()
    for name in SITES:  # `gswgan verify --site`
        own = OwnLedger(tmp_path / "state" / name, out.with_suffix(".packed") / "ledger.jsonl", plan)
        assert list(own.disagreements(json.loads((out / "release/privacy.json").read_text()))) == []


def answered(root: Path, *names: str) -> Path:
    (root / "answers").mkdir(exist_ok=True)
    for name in names:
        answer = root / "answers" / f"{name}.safetensors"
        call("answer", root / "RUN/plan.json", "--site", site(root, name, "trusted-aggregator"), "--out", answer)
    return root / "answers"


def test_a_site_that_is_missing_is_waited_for_or_counts_as_zero(tmp_path: Path):
    sites(tmp_path)
    out = planned(tmp_path, "--epsilon", 500, "--deadline", 1)
    folder = answered(tmp_path, "north", "south")
    with pytest.raises(FederationError, match=r"west.*--close"):
        call("combine", out, folder, "--device", "cpu")
    assert not RunFolder(out).ledger.exists()
    (folder / "north.safetensors").unlink()  # it has been taken
    shown = call("combine", out, folder, "--close", "--device", "cpu")
    assert "answers:   2 of 3" in shown
    assert RunFolder(out).is_finished
    assert "also:" in call("combine", out, folder, "--device", "cpu")  # once more: nothing is released again
    found = ask("combine", out, folder, "--device", "cpu")
    assert (found["run"], found["privacy"]["unit"]) == (str(out), "person")
    again = tmp_path / "again.safetensors"
    answer = ask(
        "answer", out / "plan.json", "--site", site(tmp_path, "north", "trusted-aggregator"), "--out", again
    )  # fmt: skip
    assert (answer["answer"], answer["answers"]) == (str(again), 1)
    assert 0 < answer["spent_epsilon"] <= answer["cap_epsilon"] == 1000


def test_a_site_answers_within_its_cap_and_the_same_again(tmp_path: Path):
    sites(tmp_path)
    out = planned(tmp_path, "--epsilon", 500)
    low = site(tmp_path, "north", "trusted-aggregator", epsilon=1.0)
    with pytest.raises(FederationError, match="at most 1, the cap"):
        call("answer", out / "plan.json", "--site", low, "--out", tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with pytest.raises(FederationError, match="as this client is set up"):
        call("answer", out / "plan.json", "--site", low, "--trust", "untrusted-server", "--out", tmp_path / "a")
    for file in ("a", "b"):
        call("answer", out / "plan.json", "--site", low, "--epsilon", 600, "--out", tmp_path / file)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert len(Memory.read(home_of(tmp_path / "state/north", "north")).events) == 1
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FederationError, match="does not exist yet"):
        call("answer", out / "plan.json", "--site", low, "--epsilon", 600, "--out", tmp_path / "link")
    assert not (tmp_path / "target").exists()


def test_bad_records_are_told_to_the_site_and_nothing_is_written(tmp_path: Path):
    mine = sites(tmp_path)["north"]
    planned(tmp_path, "--epsilon", 500)
    np.savez(tmp_path / "north.npz", images=mine.images[:, 0], labels=mine.labels + 3)
    with pytest.raises(GswganError, match="labels"):
        answered(tmp_path, "north")
    assert list((tmp_path / "answers").iterdir()) == []
    assert not (tmp_path / "state").exists()


def stating(path: Path, epsilon: float) -> Plan:
    """The plan with another figure, as a file."""
    plan = read_plan(path)
    plan = dataclasses.replace(plan, guarantee=dataclasses.replace(plan.guarantee, epsilon=epsilon))
    path.unlink()
    plan.save(path)
    return plan


def test_a_plan_that_states_less_than_it_costs_is_refused_by_the_site(tmp_path: Path):
    mine = sites(tmp_path)["north"]
    path, out = planned(tmp_path, "--epsilon", 500) / "plan.json", tmp_path / "a.safetensors"
    lying = stating(path, 0.1)
    with pytest.raises(PlanError, match=r"0\.1: expected at least (499|500).*states less than it costs"):
        call("answer", path, "--site", site(tmp_path, "north", "trusted-aggregator"), "--out", out)
    assert not out.exists()
    cap = Cap(epsilon=1000.0, delta=1e-5, neighbours="zeroed")
    client = Client("north", mine, tmp_path / "state", trust="trusted-aggregator", cap=cap)
    assert "states less than it costs" in why_refused(client, client.reply(question(lying)))
    assert not list(client.home.glob("*/ledger.jsonl"))

    stating(path, 700.0)  # more than it costs is true, and what is shown is the cost
    shown = call("answer", path, "--site", tmp_path / "north.toml", "--out", out)
    found = re.search(r"public: +epsilon ([0-9.]+) at delta 1e-05 for one site zeroed", " ".join(shown.split()))
    assert found is not None, shown
    assert 499 < float(found[1]) <= 500
