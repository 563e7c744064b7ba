"""Plans of preset `refined` (or `kernel`) over sites, for `silos_refined.py` where dp-accounting is not.

    python benchmarks/silos_refined_plans.py plans/silos-mnist-5.json --data mnist --sites 5 --first 50000 --device cuda
    python benchmarks/silos_refined_plans.py plans/silos-mnist-5-kernel.json --preset kernel --data mnist --sites 5 \\
        --first 50000 --device cuda

`--device` is where they will run. With `--first` the sites hold so many training images and the others are what is
tested on. Every site adds all of the noise; epsilon is for one record of one site replaced, towards the server.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import gswgan
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts, Silos, Site
from gswgan.plan.method import Federation
from silos import DELTA, EPSILON, places
from train_plan import part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--preset", default="refined", choices=["refined", "kernel"])
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--classes-per-site", type=int)
    parser.add_argument("--first", type=int)
    parser.add_argument("--steps", type=int, help="of DP-SGD")
    parser.add_argument("--epsilon", type=float, default=EPSILON)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    data = gswgan.load_data(options.data, image_size=options.image_size)
    data = data if options.first is None else part(data, slice(options.first))
    where = places(data, options.sites, options.classes_per_site)
    sites = tuple(Site(name=f"hospital-{n + 1}", records=int((where == n).sum())) for n in range(options.sites))
    facts = dataclasses.replace(Facts.of(data), silos=Silos(sites=sites, min_sites=len(sites)))
    plan = make_plan(
        facts, preset=options.preset, federation=Federation(observer="server", neighbours="replace-one"),
        epsilon=options.epsilon, delta=DELTA, steps=options.steps, device=options.device,
    )  # fmt: skip
    options.plan.parent.mkdir(parents=True, exist_ok=True)
    plan.save(options.plan)
    print(f"{options.plan}: {plan.cost}; {plan.describe()}")


if __name__ == "__main__":
    main()
