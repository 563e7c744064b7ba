"""Tables of docs/results.md that are no trainings: others' figures, real data, digits, speed (see results_page.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gswgan.privacy import Accountant, Gaussian
from gswgan.privacy.events import Repeated, Sampled
from result_runs import SETS, figure, preset, read, table

DELTA = 1e-5


def recomputed(setting: dict[str, Any], neighbours: str) -> float:
    """Epsilon at delta 1e-5 of a published DP-SGD run: records drawn by coins, noise relative to the clip norm of 1."""
    above, below = setting["rate"]
    noise = setting["noise_multiplier"]
    one = Gaussian(noise_std=noise, sensitivity=2.0 if neighbours == "replace-one" else 1.0, neighbours=neighbours)
    event = Repeated(times=setting["steps"], event=Sampled(rate=above / below, event=one))
    return Accountant(neighbours).epsilon(event, DELTA)


def published() -> str:
    """What others report, each with the relation of its epsilon and, where its setting is known, ours."""
    head = ["method or source", "their epsilon, one record", "replaced, delta 1e-5"]
    head += ["MNIST: accuracy, FID", "Fashion-MNIST: accuracy, FID"]
    rows = []
    for one in read("published")["rows"]:
        ours = "same relation" if one["relation"] == "replaced" else f"above {one['epsilon']:g}"
        if "setting" in one:
            ours = f"**{recomputed(one['setting'], 'replace-one'):.1f}**"
        relation = one["relation"].replace("-", " ")
        pairs = [_pair(*one[data]) for data in SETS]
        source = one["source"] if "diffusion" in one["method"] else f"{one['method']}, {one['source']}"
        rows.append([source, f"{one['epsilon']:g} {relation}", ours, *pairs])
    return table(head, rows)


def _pair(accuracy: float | list[float] | None, fid: float | None) -> str:
    """Accuracy in percent, or its range, and FID."""
    if accuracy is None:
        return "-"
    shares = accuracy if isinstance(accuracy, list) else [accuracy]
    return f"{' to '.join(f'{share / 100:.3f}' for share in shares)}, {'-' if fid is None else f'{fid:g}'}"


def real() -> str:
    """The "Real" rows of the paper's tables: ours, then the paper's."""
    head = ["real data", "IS", "FID", "CNN", "average of 13", "further than 0.02 from the paper"]
    rows = []
    for data, file in (("mnist", "real_classifiers_mnist"), ("fashion-mnist", "real_classifiers_fashion")):
        scores, found = read(f"real-rows-{data}-h200"), read(file)
        cnn, kinds = found["classifiers"]["cnn"], found["classifiers"]
        off = [f"{kind}: {one['accuracy']:.3f} ({one['paper']})" for kind, one in kinds.items() if not one["within"]]
        rows.append([
            SETS[data], f"{scores['inception_score']:.2f} ({scores['inception_score_paper']:.2f})",
            f"{scores['fid']:.2f} ({scores['fid_paper']:.2f})", f"{cnn['accuracy']:.3f} ({cnn['paper']:.2f})",
            f"{found['average']:.3f} ({found['paper_average']:.2f})", ", ".join(off) or "none",
        ])  # fmt: skip
    return table(head, rows)


def samme_r() -> str:
    """AdaBoost as the paper had it, on both data sets."""
    kinds = [read(file)["classifiers"] for file in ("real_classifiers_mnist", "real_classifiers_fashion")]
    return " and ".join(f"{found['adaboost_samme_r']['accuracy']:.3f}" for found in kinds)


def digits() -> str:
    """Logistic regression on synthetic 8x8 digits, in words."""
    found = []
    for name in ("kernel", "ensemble"):
        runs = read(f"digits-{'default' if name == 'kernel' else name}-cpu")["runs"]
        scores = [run["accuracy"] for run in runs]
        found.append(f"{np.mean(scores):.3f} for `{name}` ({min(scores):.3f} to {max(scores):.3f})")
    return " and ".join(found)


def digits_methods() -> str:
    """`gswgan benchmark` on digits: all methods at two epsilons."""
    content = read("benchmark-digits-cpu")
    head = ["average of five classifiers", "epsilon 1", "epsilon 10"]
    lines: dict[str, dict[float | None, dict[str, Any]]] = {}
    for row in content["rows"]:
        name = f"`{preset(row)}`" if row["method"] == "gswgan" else f"`{row['method']}`"
        lines.setdefault(name, {})[row["asked_epsilon"]] = row
    rows = []
    for name, found in lines.items():
        if None in found:  # no guarantee, so no epsilon
            rows.append([f"{name} (no guarantee)", "", _average(found[None])])
        else:
            rows.append([name, _average(found[1.0]), _average(found[10.0])])
    return table(head, rows)


def _average(row: dict[str, Any]) -> str:
    return f"{row['average_accuracy']['mean']:.3f}"


def debugging() -> str:
    """The paper's debugging task in words: half of the clients' images are inverted; a generator for each group."""
    told, shares = [], set()
    for kind in ("kernel-h200", "ensemble-h200", *(f"fed-avg-{noise}-h200" for noise in (0.01, 0.1, 0.5))):
        found = read(f"debug-mnist-writers-{kind}")
        cost = found["guarantee"]
        if (cost["delta"], cost["neighbours"]) != (DELTA, "zeroed"):
            raise ValueError(f"{kind}: {cost}; the page is for delta {DELTA} and one person zeroed")
        own = found["method"] == "gswgan"
        told.append(f"`{preset(found) if own else found['method'] + ' ' + found['preset']}` {figure(cost['epsilon'])}")
        shares.add(tuple(f"{found['bright_share'][group]:.3f}" for group in ("suspected", "unsuspected")))
    ((suspected, others),) = shares  # all methods tell the groups apart alike
    return f"{suspected} of the suspected and {others} of the others, for all of: {', '.join(told)}"


def wire() -> str:
    """Bytes on the wire for a client that is asked, as measured between its SuperNode and the SuperLink."""
    found = read("wire-cpu")
    head = ["", "down", "up", "serves"]
    rows = []
    for name, case, which, serves in (
        ("kernel critic", "kernel 28", "first round", "all steps"),
        ("Algorithm 2, `ensemble`", "ensemble 28", "round", "one step"),
        ("Algorithm 2, `paper-federated`", "paper-federated 28", "round", "one step"),
        ("Fed-Avg GAN, published size (counted)", "fed-avg gan", "round", "six steps"),
    ):
        moved = found[case][which]
        rows.append([name, f"{moved['down']:,.0f}", f"{moved['up']:,.0f}", serves])
    return table(head, rows)


def canaries() -> str:
    """Trainings with canaries in the data: the lower bound on epsilon that one run shows in the white box."""
    head = ["training on digits", "states", "shown"]
    rows = []
    for row in read("canaries-digits-cpu")["rows"]:
        best = max(one["epsilon"] for one in row["white_box"].values())
        if not row["leak"] and row["stated"]["epsilon"] < 2:  # a leak's training without its leak
            if best >= 0.005:
                raise ValueError(f"{row['name']}: {best}; the page says 0")
            continue
        name = f"planted: {row['name']}" if row["leak"] else row["name"].replace("default", "kernel")
        name = name.replace("shard", "partition").replace(", the worst critics that are allowed", ", worst critics")
        rows.append([name, f"{row['stated']['epsilon']:.3g}", f"{best:.2f}" + (" (found)" if row["refuted"] else "")])
    return table(head, rows)


def speed() -> str:
    """What steps and passes cost on the H200."""
    found = read("ensemble-critics-h200")["results"]
    fast = next(one for one in found if (one["setting"], one["critics"], one["form"]) == ("paper", 256, "batched"))
    rate, times = _short(fast["updates_per_second"]), _short(fast["times_the_loop"])
    rows = [["256 critics of the paper's size, batched", f"{rate} updates/s, {times} times a loop"]]
    for one in read("ensemble-cost-h200")["rows"]:
        if (one["side"], one["critics"]) == (28, 1000) and one["participants"] == 100:
            rows.append([f"ensemble step, {one['participants']} of 1000 critics", f"{one['step_ms']:.0f} ms"])
    cost = read("cost-h200")
    one = cost["releases"][-1]
    rows.append([f"kernel sums of {one['n']:,} records, {one['features']} features", f"{one['seconds']:.2f} s"])
    for one in cost["steps"]:
        if (one["features"], one["batch"], one["channels"]) == (32768, 200, 1) and one["side"] == 28:
            rows.append([f"generator step (`resnet`), {one['side']}x{one['side']}", f"{one['ms']:.2f} ms"])
    preset = next(one for one in read("refined-cost-h200")["rows"] if (one["side"], one["width"]) == (28, 32))
    rows.append(
        [f"DP-SGD of `refined`, {preset['draws']} draws of a record", f"{_short(preset['per_second'])} draws/s"]
    )
    return table(["what", "H200"], rows)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
