"""Tables of docs/results.md that are not of MNIST and Fashion-MNIST at one site: colour images, and silos."""

from __future__ import annotations

import json
from typing import Any

from gswgan.privacy.accountant import visible_draw_epsilon
from result_runs import RESULTS, SETS, Record, machine, name, spread, table, true_epsilon

DATA = {"blood": "blood cells", "faces": "faces", "cifar10": "CIFAR-10", "skin": "skin lesions"}
"""The data of a record, by the beginning of its name."""


def _records() -> list[Record]:
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    return [one for one in found if "cnn_accuracy" in one and "plan" in one]


SEARCHED = {"search", "wide"}
"""Words in the names of runs that were made to choose settings."""


def pictures() -> str:
    """Every training on images other than MNIST's and Fashion-MNIST's that protects records at one site."""
    head = ["data", "image", "records", "preset", "public images", "epsilon", "tested on", "CNN", "FID", "machine"]
    rows = []
    for one in _records():
        facts, plan = one["plan"]["facts"], one["plan"]
        elsewhere = facts["data"] in SETS or facts["persons"] is not None or facts.get("silos")
        if elsewhere or SEARCHED.intersection(one["name"].split("-")):
            continue
        side, public = facts["image_size"], plan.get("public")
        trained = f"{one.get('fid_images', facts['records']):,}"
        how = name(one) + features_of(one)
        where = "test set" if one["tested_on"] == "test set" else "held out"
        scores = [spread([one], key, digits) for key, digits in (("cnn_accuracy", 3), ("fid", 1))]
        others = f"{public['images']:,}" if public else ""
        others = ", ".join(part for part in (others, network_of(plan["critic"])) if part) or "none"
        about = [DATA[one["name"].split("-")[0]], f"{side}x{side}x{facts['channels']}", trained, how, others]
        rows.append([*about, true_epsilon(one), where, *scores, machine(one)])
    return table(head, rows)


def larger_sides() -> str:
    """What larger images cost the kernel critic, with averages of pixels as it is planned, and with all of them."""
    rows, own = [], {32: 1, 64: 2, 128: 4}
    for one in json.loads((RESULTS / "sides-cpu.json").read_text())["cases"]:
        way = f"averages of {one['averaged']}x{one['averaged']}" if one["averaged"] > 1 else "all pixels"
        way += " (the preset's)" if own[one["side"]] == one["averaged"] else ""
        figures = [f"{one['release_s']:.0f} s", f"{one['step_s']:.2g} s", f"{one['peak_bytes'] / 1e9:.1f} GB"]
        rows.append([f"{one['side']}x{one['side']}x3", way, *figures])
    return table(["image", "features see", "release of 5,000 records", "step", "memory"], rows)


def features_of(one: Record) -> str:
    """What is unusual about the features, and about the number of steps."""
    kernel = {**one["plan"]["critic"], **one["plan"]["critic"].get("kernel", {})}
    alone = "features" in kernel and not kernel.get("convolutions") and not kernel.get("public_network")
    few = f", {one['steps']:,} steps" if "-1500-" in one["name"] else ""
    return (", pixels alone" if alone else "") + few


def network_of(critic: dict[str, Any]) -> str:
    """The network of the features that others trained; empty where there is none."""
    return str({**critic, **critic.get("kernel", {})}.get("public_network", "")).upper()


def silos() -> str:
    """Every round over silos, the generator trained from its release."""
    head = ["round", "held", "sites", "noise by", "epsilon, to", "like one site at", "CNN", "generator on"]
    rows = []
    for one in _records():
        if sites := one["plan"]["facts"].get("silos"):
            own = one["privacy"]["observer"] == "server"
            told = f"{true_epsilon(one)}, server, other sites, public" if own else f"{true_epsilon(one)}, public"
            count, by = str(len(sites["sites"])), "every site" if own else "the server, once"
            mu = 2 / (one["plan"]["privacy"]["noise_std"] * (len(sites["sites"]) ** 0.5 if own else 1.0))
            alone = f"{visible_draw_epsilon(mu, 1, 1, one['plan']['privacy']['delta']):.1f}"
            which = one["name"].removeprefix("silos-")
            way = "over Flower" if "Flower" in one.get("round", {}).get("over", "") else "by files"
            rows.append([which, way, count, by, told, alone, spread([one], "cnn_accuracy", 3), machine(one)])
    return table(head, rows)
