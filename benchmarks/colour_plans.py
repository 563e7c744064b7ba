"""Plans of the runs on colour pictures in docs/results.md, for `train_plan.py` where dp-accounting and pyarrow are not.

    GSWGAN_DATA=DATA python benchmarks/colour_plans.py PLANS                # all of them, or those that are named
    python benchmarks/carried_sets.py unpack CARRIED DATA                   # on the other machine: see there; runs
                                                                            # with VGG19 need DATA/vgg19, too
    python benchmarks/train_plan.py PLANS/blood-refined-eps10-public.json --device cuda \\
        --data DATA/blood_cells --public DATA/public_photos
    python benchmarks/train_plan.py PLANS/skin-refined-by-lesion-eps10.json --device cuda \\
        --data DATA/skin_lesions --group-by DATA/skin_lesions/persons.csv

Settings follow from the product's own planner: after a change of them the plans are made again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

import gswgan
from gswgan.data import ImageData
from gswgan.data.public import read_public
from gswgan.methods import make_plan
from gswgan.plan.enough import too_few
from gswgan.plan.facts import Facts, PublicFacts

CIFAR10, PHOTOS = "cifar10", "public_photos"
SETS = {"blood": "blood_cells", "faces": "faces", "cifar10": CIFAR10, "skin": "skin_lesions"}
LESION = "lesion"

RUNS: dict[str, dict[str, Any]] = {
    "blood-kernel-eps10": {"preset": "kernel"},
    "blood-refined-eps10": {},
    "blood-kernel-eps1": {"preset": "kernel", "epsilon": 1},
    "blood-kernel-eps10-vgg": {"preset": "kernel", "public_features": "vgg19"},
    "blood-refined-eps10-vgg": {"public_features": "vgg19"},
    "blood-refined-eps10-public": {"public": True},
    "blood-refined-eps10-public-vgg": {"public": True, "public_features": "vgg19"},
    "blood-refined-eps1": {"epsilon": 1},
    "blood-refined-eps1-vgg": {"epsilon": 1, "public_features": "vgg19"},
    "blood-dp-merf-eps10": {"method": "dp-merf"},
    "blood-dp-sgd-gan-eps10": {"method": "dp-sgd-gan"},
    "faces-kernel-eps10": {"preset": "kernel"},
    "faces-kernel-eps10-vgg": {"preset": "kernel", "public_features": "vgg19"},
    "faces-refined-eps10": {},
    "faces-refined-eps10-vgg": {"public_features": "vgg19"},
    "faces-refined-eps10-public": {"public": True},
    "cifar10-kernel-eps10": {"preset": "kernel"},
    "cifar10-kernel-eps10-vgg": {"preset": "kernel", "public_features": "vgg19"},
    "cifar10-refined-eps10": {},
    "cifar10-refined-eps10-vgg": {"public_features": "vgg19"},
    "cifar10-refined-eps10-public": {"public": True},
    "cifar10-dp-merf-eps10": {"method": "dp-merf"},
    "cifar10-dp-sgd-gan-eps10": {"method": "dp-sgd-gan"},
    "skin-kernel-by-record-eps10": {"preset": "kernel"},
    "skin-kernel-by-lesion-eps10": {"preset": "kernel", "group_by": LESION},
    "skin-refined-by-record-eps10": {},
    "skin-refined-by-lesion-eps10": {"group_by": LESION},
}
"""By name, whose first word is the data: what is asked for beside epsilon 10, preset `refined` and delta as usual."""


@functools.cache
def load(name: str, group_by: str | None) -> ImageData:
    place = name if name == CIFAR10 else Path(os.environ["GSWGAN_DATA"]) / name
    return gswgan.load_data(place, group_by=group_by)


@functools.cache
def public_facts(image_size: int) -> PublicFacts:
    photos = read_public(Path(os.environ["GSWGAN_DATA"]) / PHOTOS, image_size=image_size, channels=3)
    return dataclasses.replace(PublicFacts.of(photos), name=PHOTOS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="*", default=list(RUNS), help="names of runs; without them, all")
    parser.add_argument("--device", default="cuda", help="where they will run")
    parser.add_argument("--steps", type=int, help="instead of as many as planned")
    parser.add_argument("--tag", default="", help="ending of the plans' names")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.runs:
        asked = dict(RUNS[name])
        data = SETS[name.partition("-")[0]]
        facts = dataclasses.replace(Facts.of(load(data, asked.pop("group_by", None))), data=data)
        public = public_facts(facts.image_size) if asked.pop("public", False) else None
        usual = {} if "method" in asked else {"preset": "refined"}
        plan = make_plan(
            facts, **{"epsilon": 10, "steps": options.steps, **usual, **asked}, public=public, device=options.device
        )
        plan.save(options.out / f"{name}{options.tag}.json")
        print(f"{name}: {facts.size}, {plan.cost}\n  {plan.describe()}", flush=True)
        if (wrong := too_few(plan)) is not None:
            print(f"  {wrong}", flush=True)


if __name__ == "__main__":
    main()
