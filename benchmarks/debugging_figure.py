"""The grids of several debugging tasks side by side, as in the paper's Figure 5.

    python benchmarks/debugging_figure.py DEBUG/kernel DEBUG/ensemble DEBUG/fed-avg-0.01 --out docs/debugging.png

Each folder is one of `gswgan federate debug --out`. Both grids of a folder are samples of released generators.
"""

from __future__ import annotations

import argparse
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from PIL import Image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    groups, count = ("suspected", "unsuspected"), len(options.folders)
    figure, axes = plt.subplots(2, count, figsize=(3 * count, 6.8), layout="constrained", squeeze=False)
    for column, folder in enumerate(options.folders):
        for row, group in enumerate(groups):
            axis = axes[row][column]
            axis.imshow(plt.imread(folder / f"{group}.png"), cmap="gray")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_ylabel(group if column == 0 else "")
        axes[0][column].set_title(title(json.loads((folder / "debug.json").read_text())), fontsize="medium")
    figure.suptitle("One writer zeroed, observer: the public, for both generators of a column together")
    figure.savefig(drawn := BytesIO(), dpi=80)
    Image.open(drawn).convert("L").save(options.out, optimize=True)


def title(found: dict[str, Any]) -> str:
    """What was run, and what it costs."""
    name = {"default": "kernel critic", "ensemble": "Algorithm 2"}.get(found["preset"])
    if found["method"] == "fed-avg-gan":
        name = f"Fed-Avg GAN, {found['preset'].replace('-', ' ')}"
    cost = found["guarantee"]
    epsilon = f"{cost['epsilon']:.3g}" if cost["epsilon"] < 1000 else f"{cost['epsilon']:,.0f}"
    return f"{name}\nepsilon {epsilon}, delta {cost['delta']:.0e}".replace("e-0", "e-")


if __name__ == "__main__":
    main()
