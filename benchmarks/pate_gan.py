"""Where PATE-GAN stalls, as it is and with the GS-WGAN paper's three remedies: initialisation, capacity, more updates.

    python benchmarks/pate_gan.py --data digits --out benchmarks/results/pate-gan-digits-cpu.json

All runs have one epsilon: a remedy with more updates a round has fewer rounds. The figures come from the private log of
each run (since when all teachers have called all fakes fake, in which step the generator's gradient was gone). Digits
and MNIST are public, so they may be published; on private data they may not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gswgan.data import ImageData, load_data
from gswgan.methods import make_plan
from gswgan.methods.pate_gan import PateGanSettings
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.plan.settings import pick_device
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from record import record

KEPT = ("unanimous_since", "vanished_at", "gradient_norm", "labelled_real", "votes_real")


def remedies(settings: PateGanSettings, width: int) -> dict[str, dict[str, Any]]:
    """What differs from the method as it is; `steps` times as many generator steps keep the number of releases."""
    return {
        "as it is": {},
        "initial weights times 0.3": {"gain": 0.3},
        "initial weights times 3": {"gain": 3.0},
        "student and generator twice as wide, teachers half": {
            "student_width": 2 * settings.student_width,
            "teacher_width": max(1, settings.teacher_width // 2),
            "generator": 2 * width,
        },
        "student half as wide, teachers twice": {
            "student_width": max(1, settings.student_width // 2),
            "teacher_width": 2 * settings.teacher_width,
        },
        "four times as many student updates": {"student_updates": 4 * settings.student_updates, "steps": 0.25},
        "five generator updates a round": {"generator_updates": 5, "steps": 5},
    }


def changed(plan: Plan, remedy: dict[str, Any]) -> Plan:
    """The plan with the remedy; what is released, and so the guarantee, stays as it is."""
    remedy = dict(remedy)
    steps = round(plan.training.steps * remedy.pop("steps", 1))
    generator = dataclasses.replace(plan.generator, width=remedy.pop("generator", plan.generator.width))
    return dataclasses.replace(
        plan, critic=dataclasses.replace(plan.critic, **remedy), generator=generator,
        training=dataclasses.replace(plan.training, steps=steps),
    )  # fmt: skip


def stall(plan: Plan, data: ImageData, device: str) -> dict[str, Any]:
    """A run's last line in the private log, and its time."""
    began = time.perf_counter()
    with TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", plan)
        run(folder, data, device=pick_device(device))
        last = json.loads(folder.metrics.read_text().splitlines()[-1])
    found = {"steps": plan.training.steps, **{name: last[name] for name in KEPT}}
    return {**found, "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--steps", type=int, help="of the method as it is")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()

    data = load_data(options.data)
    plan = make_plan(
        Facts.of(data), method="pate-gan", epsilon=options.epsilon, steps=options.steps, device=options.device
    )
    rows = []
    for name, remedy in remedies(plan.critic, plan.generator.width).items():
        found = stall(changed(plan, remedy), data, options.device)
        print(f"{name}: {found}", flush=True)
        rows.append({"remedy": name, "settings": remedy, **found})
    record(options.out, {"data": options.data, "plan": plan.to_json(), "runs": rows})


if __name__ == "__main__":
    main()
