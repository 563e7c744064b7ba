"""Kills over training, packing and federated rounds: real processes, SIGKILL, and what is left goes on.

    python benchmarks/kills.py --kills 200 --out benchmarks/results/kills.json

Each life is a fork that does a piece of work on a folder: a training (kernel critic or ensemble), `pack`, the one
federated round of the kernel critic, the rounds of Algorithm 2 (server and clients in one process). It is killed up to
three times, in turn at a fault point (survival.py names them: before, in the middle of and after every operation on a
file of the folder) and at a random moment of its life; the last life comes to its end. Then, byte for byte, the result
must be that of work that was never killed (noise is reproducible here), every ledger, those of the clients too, must
have as many lines, and what stands under the name of a packed release must verify at any time. benchmarks/survival.py
kills the command line itself.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import survival
from gswgan.data import ImageData, clients, make_image_data
from gswgan.federated.client import Client
from gswgan.federated.critic_plan import make_critic_plan, most_spent
from gswgan.federated.memory import Cap
from gswgan.federated.remote_critics import InProcess, run_rounds
from gswgan.federated.server import Round, create_run
from gswgan.federated.trust import make_federated_plan, trust_of
from gswgan.plan.make import make_plan
from gswgan.plan.plan import Facts, Plan
from gswgan.release.pack import pack
from gswgan.release.verify import verify
from gswgan.run import checkpoint
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from record import record

CPU = torch.device("cpu")
PERSONS = 8
PUBLISHED = ("generator.safetensors", "embedding.safetensors", "ledger.jsonl", "privacy.json", "federation.json")


def people() -> ImageData:
    """Striped images of three classes, seven for each of a few persons."""
    rng = np.random.default_rng(0)
    persons, labels = np.repeat(np.arange(PERSONS), 7), np.arange(7 * PERSONS) % 3
    images = rng.integers(0, 60, (len(labels), 8, 8))
    for index, label in enumerate(labels):
        images[index, label::4] += 180
    ids = [f"person {person}" for person in persons]
    return make_image_data(images.astype(np.uint8), labels, classes=3, persons=ids, name="people")


def small(plan: Plan) -> Plan:
    """The plan with narrow networks."""
    critic: Any = {"features": 64} if hasattr(plan.critic, "features") else {"width": 2, "updates": 2}
    generator = dataclasses.replace(plan.generator, architecture="mlp", width=16, spectral_norm=False)
    return dataclasses.replace(plan, generator=generator, critic=dataclasses.replace(plan.critic, **critic))


class Training:
    """A centralized training."""

    def __init__(self, preset: str, steps: int, **options: Any) -> None:
        self.name, self.data = f"training, {preset}", dataclasses.replace(people(), persons=None, person_ids=())
        self.plan = small(
            make_plan(Facts.of(self.data), preset=preset, steps=steps, insecure_reproducible=True, **options)
        )

    def live(self, root: Path) -> None:
        folder = RunFolder(root / "run")
        if not folder.model.exists():
            folder = RunFolder.create(root / "run", self.plan)
        if not folder.is_finished or folder.key.exists():
            run(folder, self.data, device=CPU)

    def published(self, root: Path) -> dict[str, bytes]:
        return _files(root / "run/release", PUBLISHED)


class Packing:
    """`pack` of a run that has ended; its noise is secret, or it would not be packed."""

    name = "packing"

    def __init__(self, finished: Path) -> None:
        self._finished = finished

    def live(self, root: Path) -> None:
        if not (root / "release").exists():
            pack(self._finished, root / "release")

    def published(self, root: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (root / "release").iterdir()}


class OneRound:
    """The kernel critic's federated round and the training after it."""

    def __init__(self, trust: str, epsilon: float) -> None:
        self.name, self.data = f"federated round, {trust}", people()
        plan = make_federated_plan(
            Facts.of(self.data), trust=trust, epsilon=epsilon, steps=6, insecure_reproducible=True
        )
        self.plan = small(plan)
        assert plan.guarantee is not None
        self._cap = Cap(
            epsilon=plan.guarantee.epsilon, delta=plan.guarantee.delta, neighbours=plan.guarantee.neighbours
        )

    def live(self, root: Path) -> None:
        held = Round(_federated(root / "run", self.plan, self.data))
        with held.held():
            if not held.is_released:
                held.open()
                for node, client in enumerate(self._clients(root).values()):
                    if not held.is_closed and client.name not in held.answered:
                        assert held.take(client.reply(held.question()), node=node) is None
                held.release()
        if not held.folder.is_finished or held.folder.key.exists():
            run(held.folder, None, device=CPU)

    def _clients(self, root: Path) -> dict[str, Client]:
        return {
            name: Client(name, mine, root / "state", trust=trust_of(self.plan), cap=self._cap, insecure=True)
            for name, mine in clients(self.data)
        }

    def published(self, root: Path) -> dict[str, bytes]:
        ledgers = sorted((root / "state").glob("*/*/ledger.jsonl"))
        assert len(ledgers) == PERSONS
        return _files(root / "run/release", PUBLISHED) | {str(p.relative_to(root)): p.read_bytes() for p in ledgers}


class ManyRounds(OneRound):
    """Algorithm 2."""

    def __init__(self, trust: str, epsilon: float) -> None:
        self.name, self.data = f"rounds of Algorithm 2, {trust}", people()
        plan = make_critic_plan(Facts.of(self.data), trust=trust, epsilon=epsilon, rounds=4, insecure_reproducible=True)
        self.plan = small(plan)
        assert plan.privacy is not None
        self._cap = Cap(epsilon=most_spent(plan), delta=plan.privacy.delta, neighbours=plan.privacy.neighbours)

    def live(self, root: Path) -> None:
        folder = _federated(root / "run", self.plan, self.data)
        if not folder.is_finished or folder.key.exists():
            run_rounds(folder, InProcess(self._clients(root)), device=CPU)


def _federated(root: Path, plan: Plan, data: ImageData) -> RunFolder:
    folder = RunFolder(root)
    if not folder.rounds.exists():  # nobody was asked yet
        shutil.rmtree(root, ignore_errors=True)
        create_run(root, plan, data.person_ids, 600)
    return folder


def _files(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def live(work: Any, root: Path, point: str | None, moment: float | None) -> tuple[bool, str]:
    """One life in a process of its own; whether it was killed, and what it said where it failed."""
    said = root.with_suffix(".said")
    child = os.fork()
    if child == 0:
        try:
            with survival.Faults(point, survival.kill, sync=False).installed():
                work.live(root)
            os._exit(0)
        except BaseException:
            said.write_text(traceback.format_exc())
            os._exit(1)
    if moment is not None:
        time.sleep(moment)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return True, ""
    return False, "" if os.WEXITSTATUS(status) == 0 else said.read_text()[-400:]


@dataclass(kw_only=True)
class Row:
    """What became of one folder."""

    work: str
    kills: list[str] = field(default_factory=list)
    result: str = "ok"


def hurt(work: Any, root: Path, points: list[str], life: float, expected: dict[str, bytes], draw: random.Random) -> Row:
    """Kill, go on, and compare."""
    row = Row(work=work.name)
    root.mkdir()
    for turn in range(draw.randint(1, 3)):
        at_point = draw.random() < 0.6
        point = draw.choice(points) if at_point else None
        moment = None if at_point else draw.uniform(0, life)
        killed, wrong = live(work, root, point, moment)
        if killed:
            row.kills.append(_plain(point) if point else f"a random moment ({moment:.2f} s)")
        if wrong:
            row.result = f"life {turn + 1}: {wrong}"
            return row
        if (root / "release").exists() and verify(root / "release").findings:
            row.result = "a release that does not verify"
            return row
    _, wrong = live(work, root, None, None)
    found = {} if wrong else work.published(root)
    if wrong or found != expected:
        differ = [name for name in expected if found.get(name) != expected[name]]
        row.result = wrong or f"another {', '.join(differ)}"
    elif any(path.name in ("key.json", "journal.jsonl") for path in (root / "run").rglob("*")):
        row.result = "a key or journal left"
    return row


def _plain(point: str) -> str:
    """Hashes and numbers of times out of a point's name, for counting."""
    kind, name, rest = point.split(" ", 2)
    name = "answer of a client" if len(name.split(".")[0]) == 24 else name
    return f"{kind} {name} {rest.split(':')[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)  # forks
    checkpoint.EVERY_SECONDS, checkpoint.SHARE = 0.0, 0.0
    draw, began, rows = random.Random(options.seed), time.monotonic(), list[Row]()
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        place = Path(temporary)
        survival._is_ours = lambda path: str(path).startswith(str(place)) and not str(path).endswith(".said")  # type: ignore[assignment]
        packed = Training("kernel", 8)
        plan = dataclasses.replace(packed.plan, insecure_reproducible=False)
        run(RunFolder.create(place / "finished", plan), packed.data, device=CPU)
        works: list[Any] = [
            Training("kernel", 30), Training("ensemble", 12, shards=8), Packing(place / "finished"),
            OneRound("trusted-aggregator", 10), OneRound("untrusted-server", 200),
            ManyRounds("trusted-aggregator", 10), ManyRounds("untrusted-server", 200),
        ]  # fmt: skip
        known = []
        for number, work in enumerate(works):
            (root := place / f"straight-{number}").mkdir()
            start, faults = time.monotonic(), survival.Faults(None, sync=False)
            with faults.installed():
                work.live(root)
            known.append((work, faults.passed, time.monotonic() - start, work.published(root)))
            print(f"{work.name}: {len(faults.passed)} fault points, {known[-1][2]:.1f} s", flush=True)
        while sum(len(row.kills) for row in rows) < options.kills:
            work, points, life, expected = known[len(rows) % len(known)]
            root = place / f"hurt-{len(rows)}"
            rows.append(hurt(work, root, points, life, expected, draw))
            if rows[-1].result != "ok":
                print(rows[-1], flush=True)
            shutil.rmtree(root)
    seconds = round(time.monotonic() - began)
    kinds = {work.name: [row for row in rows if row.work == work.name] for work in works}
    table = [
        {"work": name, "folders": len(some), "kills": sum(len(row.kills) for row in some),
         "ended_as_never_killed": sum(row.result == "ok" for row in some)}
        for name, some in kinds.items()
    ]  # fmt: skip
    for line in table:
        print("{work}: {folders} folders, {kills} kills, {ended_as_never_killed} ended as never killed".format(**line))
    kills, failed = [kill for row in rows for kill in row.kills], [row for row in rows if row.result != "ok"]
    at = Counter("a random moment" if kill.startswith("a random") else kill for kill in kills)
    print(f"{len(kills)} kills, {len(failed)} failures, {seconds} s")
    record(options.out, {"kills": len(kills), "failed": len(failed), "seconds": seconds, "table": table,
                         "where": dict(at.most_common()), "rows": [asdict(row) for row in rows]})  # fmt: skip
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
