"""A release or plan that asks for more memory than there is: one message, exit code 2, nothing allocated."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted import gswgan, refused
from report_runs import a_run

from conftest import tiny_images
from gswgan import generators
from gswgan.cli import main
from gswgan.errors import RunError
from gswgan.generators import GeneratorSettings, build_network, network_shapes
from gswgan.methods import plan_from_table
from gswgan.run.folder import write_json
from gswgan.run.released import load
from processes import Child

WIDE = {"architecture": "resnet", "width": 4096, "latent": 4096}
"""A projection, and three convolutions a block, of 4096 x 4096 weights each."""


def widened(folder: Path, **changes: Any) -> Path:
    """A release with another generator in its plan, whose digest fits."""
    content = json.loads((folder / "model.json").read_text())
    table = {key: value for key, value in content["plan"].items() if key not in ("format_version", "digest")}
    table["generator"] |= changes
    write_json(folder / "model.json", {**content, "plan": plan_from_table(table).to_json()})
    return folder


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return Path(shutil.copytree(a_run("kernel") / "release", tmp_path / "release"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    stripes = tiny_images(300)
    np.savez(tmp_path / "stripes.npz", images=stripes.images[:, 0], labels=stripes.labels)
    return tmp_path / "stripes.npz"


def peak() -> int:
    """Bytes that this process has held at the most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("command", ["sample", "export", "report", "verify", "evaluate"])
def test_a_release_with_a_giant_generator_is_refused(
    release: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    widened(release, **WIDE)
    arguments = {
        "sample": ("--out", tmp_path / "s.npz"), "export": (tmp_path / "s",),
        "evaluate": ("--data", data, "--test-data", data),
    }.get(command, ())  # fmt: skip
    before = peak()
    if command == "verify":  # its findings are its output
        assert gswgan(command, release, *arguments) == 2
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err + shown.out
    else:
        assert "weights" in refused(capsys, command, release, *arguments)
    assert peak() - before < 2**29


@pytest.mark.parametrize("width", [17, 1024])
def test_weights_of_other_sizes_than_the_plans_are_found_before_the_network_is_made(
    release: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """A plan within the limit, and a file that has less: nothing of the plan's size is made."""
    widened(release, width=width)
    made: list[object] = []
    monkeypatch.setattr("gswgan.run.released.build_network", lambda *given, **options: made.append(given))
    with pytest.raises(RunError, match="of the plan's sizes"):
        load(release, device="cpu")
    assert made == []


def test_a_giant_plan_is_not_trained(
    release: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = json.loads((widened(release, **WIDE) / "model.json").read_text())["plan"]
    (tmp_path / "plan.json").write_text(json.dumps(table))
    before = peak()
    given = ("--plan", tmp_path / "plan.json", "--data", data, "--classes", 3, "--out", tmp_path / "run")
    assert "at most 268435456 weights" in refused(capsys, "train", *given, "--device", "cpu")
    assert peak() - before < 2**29
    assert not (tmp_path / "run" / "private" / "key.json").exists()


@pytest.mark.parametrize("architecture", ["resnet", "smooth-resnet", "dcgan", "bilinear", "mlp", "decoded"])
@pytest.mark.parametrize("spectral_norm", [False, True])
def test_the_sizes_on_paper_are_those_of_the_network(architecture: Any, spectral_norm: bool) -> None:
    """And counting them draws no random number: initial weights stay what they were."""
    settings = GeneratorSettings(architecture=architecture, width=4, spectral_norm=spectral_norm)
    shape = {"classes": 3, "channels": 1, "image_size": 28}
    torch.manual_seed(0)
    alone = generators._make(settings, **shape)
    torch.manual_seed(0)
    network = build_network(settings, **shape)
    found = {name: (value.shape, value.dtype) for name, value in network.state_dict().items()}
    assert network_shapes(settings, **shape) == found
    pairs = zip(alone.state_dict().values(), network.state_dict().values())
    assert all(torch.equal(one, other) for one, other in pairs)


def allocate_too_much() -> None:
    """The command line, in a process that may have little memory."""
    main.app = lambda: torch.zeros(2**40)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**28, size + 2**28))
    main.run()


def test_an_allocation_that_fails_is_one_message() -> None:
    """Torch's own error, as the command line shows it."""
    done = Child(allocate_too_much).wait()
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "can't allocate memory: you tried to allocate 4398046511104 bytes" in done.stderr
    assert "Use a machine with more memory" in done.stderr
