"""Packed releases for the tests, made once, and what it takes to tamper with a copy as a careful forger would."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from critic_rounds import critic_clients, critic_plan, federate
from report_runs import OPTIONS, _place, a_run
from rounds import answer_all, make_clients, make_round, people, small_plan

from conftest import tiny_baseline, tiny_images
from gswgan.methods import plan_from_table
from gswgan.privacy.ledger import chained_line, read_chain
from gswgan.release.files import MANIFEST, checksum
from gswgan.release.pack import pack
from gswgan.run.folder import RunFolder, write_json
from gswgan.run.loop import run
from gswgan.run.retrain import retrain

BASELINES = ("dp-merf", "dp-merf-ae", "dp-sgd-gan", "g-pate", "pate-gan")
FEDERATED = ("trusted-aggregator", "untrusted-server")
ROUNDS = {  # Algorithm 2
    "rounds": {}, "rounds-poisson": {"rate": 0.5}, "rounds-untrusted": {"trust": "untrusted-server", "epsilon": 200},
    "rounds-published": {"preset": "paper-federated", "trust": "untrusted-server", "rounds": 3},
}  # fmt: skip
CPU = torch.device("cpu")


@functools.cache
def a_finished_run(kind: str) -> Path:
    """A run of any kind that there is; not to be changed."""
    root = _place() / f"run-{kind}"
    if kind in OPTIONS:
        return a_run(kind)
    if kind.startswith("again-"):
        again = retrain(a_finished_run(kind.removeprefix("again-")), root, steps=5, device="cpu", seed=3)
        assert run(again, None, device=CPU)
    elif kind in ROUNDS:
        plan = critic_plan(**ROUNDS[kind])
        federate(root, plan, critic_clients(root.with_name(f"clients-{kind}"), plan))
    elif kind in FEDERATED:
        data = people(24)
        plan = small_plan(data, trust=kind, epsilon=10 if kind == FEDERATED[0] else 200)
        held = make_round(root, data, plan)
        answer_all(held, make_clients(root.with_name(f"clients-{kind}"), data, plan))
        held.release()
        assert run(held.folder, None, device=CPU)
    else:
        data = tiny_images(300)
        assert run(RunFolder.create(root, tiny_baseline(data, kind)), data, device=CPU)
    return root


@functools.cache
def a_release(kind: str) -> Path:
    """Its release, packed; not to be changed."""
    out = _place() / f"release-{kind}"
    pack(a_finished_run(kind), out)
    return out


def a_copy(kind: str, to: Path) -> Path:
    return Path(shutil.copytree(a_release(kind), to))


def edit(path: Path, change: Any) -> None:
    """Change a JSON file as gswgan would have written it."""
    content = json.loads(path.read_text())
    change(content)
    write_json(path, content)


def rows(folder: Path) -> list[dict[str, Any]]:
    return read_chain(folder / "ledger.jsonl")[0]


def rechain(folder: Path, changed: list[dict[str, Any]]) -> None:
    """A ledger of these rows whose chain is unbroken."""
    text, head = "", ""
    for index, row in enumerate(changed):
        content = {key: value for key, value in row.items() if key != "previous"}
        line, head = chained_line({**content, "index": index}, head)
        text += line
    (folder / "ledger.jsonl").write_text(text)


def replan(folder: Path, change: Any) -> None:
    """A changed plan with the digest that it then has, and a ledger that is bound to it."""
    content = json.loads((folder / "model.json").read_text())
    table = {key: value for key, value in content["plan"].items() if key not in ("format_version", "digest")}
    change(table)
    plan = plan_from_table(table)
    write_json(folder / "model.json", {**content, "plan": plan.to_json()})
    header, *entries = rows(folder)
    rechain(folder, [{**header, "context": plan.digest()}, *entries])


def repack(folder: Path) -> Path:
    """A manifest that fits whatever is in the folder now."""
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
    manifest: dict[str, Any] = {
        "plan": json.loads((folder / "model.json").read_text())["plan"]["digest"],
        "ledger_head": json.loads((folder / "ledger.jsonl").read_text().splitlines()[-1])["digest"],
        "files": {name: checksum(folder / name) for name in names},
    }
    write_json(folder / MANIFEST, manifest)
    return folder
