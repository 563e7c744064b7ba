"""Make a round over silos: every site is a process of its own with a data folder of its own.

    python benchmarks/silos.py --data mnist --sites 5 --out rounds/mnist-5-even
    python benchmarks/silos.py --data mnist --sites 5 --classes-per-site 4 --flower --out rounds/mnist-5-skewed

By files, or over Flower: a SuperLink and a node at each site, on loopback, with TLS and registered keys.

Each leaves OUT/release, a verified bundle of the round with a generator of one step. A generator is trained from it on
any machine (`gswgan train --from OUT/release`), at no further cost. This does so and measures it on the test set:

    python benchmarks/silos.py --train rounds/mnist-5-even/release --data mnist --device cuda --out results

Records go to sites by their index: evenly, or class c of L to the sites that have it. MNIST is public; the split is
made up, so nothing here is a statement about real sites.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

import gswgan
from gswgan.data import ImageData
from gswgan.evaluation.classifiers import accuracy
from gswgan.generators.sampling import grid_png
from gswgan.plan.settings import pick_device
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from gswgan.run.retrain import retrain
from loopback import SecureFederation, wait
from record import record

EPSILON, DELTA = 10.0, 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--classes-per-site", type=int, help="class-skewed: so many of the classes at every site")
    parser.add_argument("--trust", default="untrusted-server")
    parser.add_argument("--flower", action="store_true", help="over a network, instead of by files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", type=Path, help="a release of such a round: train from it and measure")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.train is not None:
        train_and_measure(options.train, options.data, pick_device(options.device), options.out)
        return

    began = time.perf_counter()
    data = gswgan.load_data(options.data, image_size=options.image_size)
    where = places(data, options.sites, options.classes_per_site)
    out: Path = options.out.absolute()
    out.mkdir(parents=True)
    names = [f"hospital-{site + 1}" for site in range(options.sites)]
    for site, name in enumerate(names):
        make_site(out / name, data, where == site, options.trust)
    sizes = [f"{name},{int((where == site).sum())}" for site, name in enumerate(names)]
    (out / "sites.csv").write_text("\n".join(["name,records", *sizes]) + "\n")
    (out / "classes.txt").write_text("\n".join(data.class_names) + "\n")
    call("federate", "plan", "--protect", "record", "--trust", options.trust, "--clients", out / "sites.csv",
         "--class-names", out / "classes.txt", "--image-size", data.image_size, "--channels", data.channels,
         "--name", data.name, "--epsilon", EPSILON, "--delta", DELTA, "--steps", 1, "--out", out / "RUN")  # fmt: skip
    (hold_over_flower if options.flower else hold_by_files)(out, names)
    call("release", out / "RUN", "--out", out / "release")
    facts = {"data": data.name, "trust": options.trust, "sizes": sizes, "classes": class_counts(data, where),
             "over": "Flower, TLS, a process per site" if options.flower else "files",
             "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip
    (out / "round.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts), flush=True)


def hold_by_files(out: Path, names: list[str]) -> None:
    """Every site answers into a file, and the operator adds the files up."""
    (out / "answers").mkdir()
    for name in names:
        call("federate", "answer", out / "RUN/plan.json", "--site", out / name / "site.toml",
             "--out", out / "answers" / f"{name}.safetensors")  # fmt: skip
    call("federate", "combine", out / "RUN", out / "answers", "--device", "cpu")


def hold_over_flower(out: Path, names: list[str]) -> None:
    """The same with a SuperLink, and `gswgan federate node` at every site."""
    federation = SecureFederation(out, names)
    try:
        federation.link()
        federation.register(names)
        for name in names:
            with (out / name / "site.toml").open("a") as file:
                file.write(federation.settings_of(name))
            federation.site(name)
        federation.hold()
        wait(lambda: RunFolder(out / "RUN").is_finished, "the end of the round")
    finally:
        federation.stop()


def train_and_measure(release: Path, name: str, device: torch.device, out: Path) -> None:
    """A new generator from the released embedding, and the accuracy of a CNN that learns from its images."""
    began, train, test = time.perf_counter(), gswgan.load_data(name), gswgan.load_data(name, split="test")
    round_name = release.parent.name if release.name == "release" else release.name
    with TemporaryDirectory() as place:
        folder = retrain(release, Path(place) / "run", steps=None, device=device.type, seed=0)
        assert run(folder, None, device=device, note=print)
        seconds = time.perf_counter() - began
        images, labels = gswgan.load(folder.root, device=str(device)).sample(train.n, seed=0)
        privacy = json.loads(folder.privacy.read_text())
        plan = folder.plan().to_json()
    stacked = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    result = {"name": round_name, "seconds": seconds, "tested_on": "test set", "privacy": privacy, "plan": plan}
    if (held := release.parent / "round.json").exists():
        result["round"] = json.loads(held.read_text())
    result["cnn_accuracy"] = accuracy(
        "cnn", stacked, labels, test.images, np.asarray(test.labels), classes=test.classes, device=device
    )
    out.mkdir(parents=True, exist_ok=True)
    rows = [np.flatnonzero(labels == label)[:10] for label in np.unique(labels)]
    (out / f"silos-{round_name}.png").write_bytes(grid_png(stacked[np.concatenate(rows)], 10, side=28))
    record(out / f"silos-{round_name}.json", result)
    print(f"{round_name}: {seconds:.1f} s, cnn {result['cnn_accuracy']:.4f}", flush=True)


def places(data: ImageData, sites: int, per_site: int | None) -> np.ndarray:
    """The site of every record [n]."""
    if per_site is None:
        return np.arange(data.n) % sites
    assert data.labels is not None
    where = np.zeros(data.n, np.int64)
    for label in range(data.classes):
        having = [
            site for site in range(sites) if (label - round(site * data.classes / sites)) % data.classes < per_site
        ]
        mine = np.flatnonzero(data.labels == label)
        where[mine] = np.resize(having, len(mine))
    return where


def class_counts(data: ImageData, where: np.ndarray) -> list[list[int]]:
    """Records of each class at each site."""
    return [np.bincount(data.labels[where == site], minlength=data.classes).tolist() for site in range(where.max() + 1)]


def make_site(folder: Path, data: ImageData, mine: np.ndarray, trust: str) -> None:
    """A site's data folder, state and configuration: an npz file, or a folder of images where classes have names."""
    assert data.labels is not None
    folder.mkdir()
    images, labels = np.moveaxis(data.images[mine], 1, 3), data.labels[mine]
    numbered = list(data.class_names) == [str(label) for label in range(data.classes)]
    if numbered:
        np.savez(folder / "images.npz", images=images[..., 0] if data.channels == 1 else images, labels=labels)
    else:
        for number, (image, label) in enumerate(zip(images, labels)):
            place = folder / "images" / data.class_names[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[..., 0] if data.channels == 1 else image).save(place / f"{number:06}.png")
    (folder / "site.toml").write_text(
        f'client = "{folder.name}"\ndata = "{folder / ("images.npz" if numbered else "images")}"\n'
        f'state = "{(folder / "state").absolute()}"\nprotect = "record"\ntrust = "{trust}"\nepsilon = {EPSILON}\n'
        f"delta = {DELTA}\n" + (f"classes = {data.classes}\n" if numbered else "")
    )


def call(*arguments: object) -> None:
    """A command of gswgan in a process of its own."""
    subprocess.run([sys.executable, "-m", "gswgan", *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
