"""Bytes on the wire, up and down, for each client: Algorithm 2 per generator step, the kernel's one round, Fed-Avg GAN.

    python benchmarks/wire.py --out benchmarks/results/wire-cpu.json

A SuperLink and SuperNodes as real processes on loopback; a forwarder between each SuperNode and the SuperLink counts
what passes (loopback.py), Flower's envelope, TCP payload and polling included. For a round of Algorithm 2 it is what
passed between the end of one round and the end of the next, the median over rounds and clients; the first round, in
which nodes join, is apart, and a round that took so long that questions were sent twice is left out. Polling goes
on while a round takes long: its bytes a second are measured on idle nodes.

`message` is what our messages hold, without any envelope. Figures over a whole training are rounds times the measured
round, plus joining. Fed-Avg GAN is counted: the parameters of the discriminator as 32-bit floats down, an update of the
same size up; the published size is what the paper's 3.94e7 bytes make it (Table 2: both ways, one generator step).
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gswgan.federated
from gswgan.critics.kernel.features import KernelSettings
from gswgan.federated.flower import PATIENCE_SECONDS
from gswgan.federated.server import create_run
from gswgan.federated.trust import make_federated_plan, trust_of
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.run.folder import RunFolder
from loopback import Federation, rows_of, wait
from record import record

APP = Path(str(gswgan.federated.__file__)).parent / "app"
PAPER = {"fed-avg gan": 3.94e7, "gs-wgan": 1.5e5}
"""Table 2 of the paper: bytes for one generator step, both ways, averaged over the participating clients."""
WHOLE = {"ensemble": 100, "paper-federated": 30_000}
"""Rounds of a whole training: the default of `gswgan federate`, and the published number."""
CASES = ["ensemble 28", "paper-federated 28", "kernel 28", "ensemble 8"]
"""A preset with the side of the images; 10 classes."""
WAYS = ("down", "up")

Wires = dict[str, dict[str, int]]


def facts(persons: int, image_size: int) -> Facts:
    return Facts(
        data="random", records=persons * 20, persons=persons, classes=10, class_names=tuple("0123456789"),
        labelled=True, image_size=image_size, channels=1,
    )  # fmt: skip


def plan_of(case: str, persons: int, rounds: int) -> Plan:
    """The plan as the command line makes it; what only takes time, and no bytes, is left out."""
    preset, _, side = case.partition(" ")
    public = facts(persons, int(side))
    if preset == "kernel":
        return make_federated_plan(public, epsilon=1000, steps=1)  # few clients: enough to be told from the noise
    trust = "untrusted-server" if preset == "paper-federated" else "trusted-aggregator"
    plan = make_federated_plan(public, preset=preset, trust=trust, rounds=rounds)
    return dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, warm_start=0, updates=1))


def measure(case: str, persons: int, rounds: int, idle: float) -> dict[str, Any]:
    """Joining, idling, each round: what every client's forwarder has counted."""
    plan, rng = plan_of(case, persons, rounds), np.random.default_rng(0)
    size, names = plan.facts.image_size, [f"client {index}" for index in range(persons)]
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        federation, folder = Federation(root, APP), create_run(root / "RUN", plan, tuple(names), 900)
        try:
            federation.link()
            for name in names:
                images = rng.integers(0, 256, (20, size, size)).astype(np.uint8)
                np.savez(root / f"{name}.npz", images=images, labels=np.arange(20) % 10)
                federation.pinned_node(name, name, trust=trust_of(plan), cap=10_000.0, classes=10)
            wait(lambda: all(wire.down for wire in federation.wires.values()), "all nodes")
            time.sleep(idle)  # they join
            joined = federation.bytes_on_the_wire()
            time.sleep(idle)
            marks, times = [federation.bytes_on_the_wire()], [time.monotonic()]
            federation.hold()
            for number in range(1 if isinstance(plan.critic, KernelSettings) else rounds):
                wait(lambda n=number: _is_over(folder, n, plan), f"round {number} of {case}")
                marks.append(federation.bytes_on_the_wire())
                times.append(time.monotonic())
            rows = [row for row in rows_of(folder) if "digest" in row]
        finally:
            federation.stop()
    slow = {number for number in range(1, len(marks) - 1) if times[number + 1] - times[number] > PATIENCE_SECONDS}
    result = _summary(rows, joined, marks, idle, slow)
    if "round" in result and (whole := WHOLE.get(plan.preset)) is not None:
        share = persons if plan.privacy is not None and plan.privacy.sampling == "one" else 1
        once, each = result["first round"], result["round"]
        result["whole training"] = {"rounds": whole, "asked in": f"1 of {share}" if share > 1 else "all"} | {
            way: round(result["joining"][way] + once[way] + (whole - 1) * each[way] / share) for way in WAYS
        }
    return result


def _is_over(folder: RunFolder, number: int, plan: Plan) -> bool:
    asked = 1 if plan.privacy is not None and plan.privacy.sampling == "one" else plan.facts.persons
    return len([row for row in rows_of(folder) if row.get("round", 0) == number and "digest" in row]) == asked


def _summary(
    rows: list[dict[str, Any]], joined: Wires, marks: list[Wires], idle: float, slow: set[int]
) -> dict[str, Any]:
    """Medians over clients, and over rounds but the first."""

    def middle(found: list[dict[str, int]]) -> dict[str, float]:
        return {way: statistics.median(one[way] for one in found) for way in WAYS}

    def passed(number: int) -> list[dict[str, int]]:
        asked = [row["client"] for row in rows if row.get("round", 0) == number]
        return [{way: marks[number + 1][name][way] - marks[number][name][way] for way in WAYS} for name in asked]

    quiet = [{way: marks[0][name][way] - joined[name][way] for way in WAYS} for name in joined]
    result: dict[str, Any] = {
        "message": {way: rows[0][way] for way in WAYS},
        "joining": middle(list(joined.values())),
        "polling a second": {way: round(value / idle, 1) for way, value in middle(quiet).items()},
        "first round": middle(passed(0)),
    }
    if later := [one for number in range(1, len(marks) - 1) if number not in slow for one in passed(number)]:
        result["round"] = middle(later)
        result["rounds"] = {"measured": len(marks) - 2 - len(slow), "left out": len(slow)}
        result["range"] = {way: [pick(one[way] for one in later) for pick in (min, max)] for way in WAYS}
    return result


def fed_avg_gan() -> dict[str, Any]:
    """Counted: the discriminator down and its update up, 4 bytes a parameter."""
    parameters = round(PAPER["fed-avg gan"] / 8)
    return {"parameters": parameters, "round": {way: 4 * parameters for way in WAYS}, "how": "counted, published size"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of polling to measure")
    parser.add_argument("--cases", nargs="*", default=CASES)
    given = parser.parse_args()
    result: dict[str, Any] = {"paper": PAPER, "clients": given.clients, "fed-avg gan": fed_avg_gan()}
    for case in given.cases:
        result[case] = found = measure(case, given.clients, given.rounds, given.idle)
        if "round" in found:
            total = sum(found["round"].values())
            found["times fewer than fed-avg gan"] = round(sum(result["fed-avg gan"]["round"].values()) / total, 1)
        print(case, found)
        record(given.out, result)


if __name__ == "__main__":
    main()
