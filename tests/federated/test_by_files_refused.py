"""Files that are no answers, or one id twice, in a round by files: refused, and nothing of them is taken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image
from test_by_files import SITES, answered, call, planned, sites

from conftest import tiny_images
from gswgan.errors import FederationError, GswganError
from gswgan.federated.server import Round
from gswgan.methods import read_plan
from gswgan.run.folder import RunFolder


def as_file(sums: bytes, **told: object) -> bytes:
    told_json = json.dumps({"format_version": 1, **told})
    return safetensors.numpy.save({"sums": np.frombuffer(sums, np.uint8)}, {"answer": told_json})


def test_files_that_are_no_answers_are_refused_and_do_not_hang(tmp_path: Path):
    sites(tmp_path)
    out = planned(tmp_path, "--epsilon", 500)
    folder = answered(tmp_path, *SITES)
    honest = (folder / "north.safetensors").read_bytes()
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "zero.safetensors").symlink_to("/dev/zero")
    (folder / "text.safetensors").write_text("no answer")
    (folder / "cut.safetensors").write_bytes(honest[:-1])
    (folder / "large.safetensors").write_bytes(honest + bytes(2**20))
    (folder / "header.safetensors").write_bytes((2**63).to_bytes(8, "little") + honest)
    sums, digest = safetensors.numpy.load(honest)["sums"], read_plan(out / "plan.json").digest()
    (folder / "stranger.safetensors").write_bytes(as_file(sums.tobytes(), client="nobody", plan=digest))
    loud = (np.frombuffer(sums.tobytes(), "<i4") * 2).tobytes()
    (folder / "loud.safetensors").write_bytes(as_file(loud, client="north", plan=digest))
    shown = call("combine", out, folder, "--device", "cpu")
    for name in ("pipe", "zero", "text", "cut", "large", "header", "stranger", "loud"):
        assert f"refused:   {name}.safetensors" in shown
    assert "answers:   3 of 3" in shown
    for name in ("pipe", "zero"):
        with pytest.raises(GswganError, match="regular file"):
            call("answer", folder / f"{name}.safetensors", "--site", tmp_path / "north.toml", "--out", tmp_path / "a")


def test_an_id_that_is_no_text_or_no_utf8_is_refused_and_every_refusal_is_shown(tmp_path: Path):
    sites(tmp_path)
    out = planned(tmp_path, "--epsilon", 500)
    folder = answered(tmp_path, *SITES)
    sums = safetensors.numpy.load((folder / "north.safetensors").read_bytes())["sums"].tobytes()
    digest = read_plan(out / "plan.json").digest()
    for name, client in {"half": "\ud800", "number": 7, "hidden": "the same"}.items():
        (folder / f"{name}.safetensors").write_bytes(as_file(sums, client=client, plan=digest))
    shown = call("combine", out, folder, "--device", "cpu")
    for name in ("half", "number", "hidden"):
        assert f"refused:   {name}.safetensors" in shown
    assert "answers:   3 of 3" in shown


def test_two_different_answers_with_one_id_stop_the_round_and_none_is_taken(tmp_path: Path):
    sites(tmp_path)
    out = planned(tmp_path, "--epsilon", 500)
    folder = answered(tmp_path, "north", "south")
    north, digest = (folder / "north.safetensors").read_bytes(), read_plan(out / "plan.json").digest()
    forged = as_file(safetensors.numpy.load(north)["sums"].tobytes(), client="south", plan=digest)
    (folder / "a.safetensors").write_bytes(forged)
    (folder / "copy.safetensors").write_bytes(north)  # the same answer twice is no matter
    with pytest.raises(FederationError, match=r"a\.safetensors and south\.safetensors.*one answer of south"):
        call("combine", out, folder, "--close", "--device", "cpu")
    held = Round(RunFolder(out), is_timed=False)
    assert (held.answered, held.is_closed, RunFolder(out).ledger.exists()) == (frozenset(), False, False)

    (folder / "a.safetensors").unlink()
    with pytest.raises(FederationError, match=r"west.*--close"):
        call("combine", out, folder, "--device", "cpu")
    (folder / "south.safetensors").write_bytes(forged)  # after the site's own was taken
    with pytest.raises(FederationError, match=r"private/answers/.*south\.safetensors.*one answer of south"):
        call("combine", out, folder, "--close", "--device", "cpu")
    assert not RunFolder(out).ledger.exists()


def test_a_site_that_states_its_classes_refuses_other_names_and_spends_nothing(tmp_path: Path):
    """In another order they are the same classes: they are matched by name."""
    data = tiny_images(30)
    for index, (image, label) in enumerate(zip(data.images[:, 0], data.labels)):  # type: ignore[arg-type]
        place = tmp_path / "scans" / ("low", "middle", "top")[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{index}.png")
    (tmp_path / "ids.txt").write_text("\n".join(f"site-{number}" for number in range(20)))
    shared = ("--clients", tmp_path / "ids.txt", "--image-size", 8, "--epsilon", 500, "--delta", 1e-3, "--force-spend")
    told = ("--client", "site-0", "--data", tmp_path / "scans", "--state", tmp_path / "state", "--epsilon", 600,
            "--delta", 1e-3, "--trust", "trusted-aggregator", "--site", tmp_path / "site.toml")  # fmt: skip
    (tmp_path / "site.toml").write_text('classes = ["low", "middle", "top"]')
    for name, names in (("numbers", None), ("other", "low,middle,upper")):
        asked = ("--classes", 3)
        if names is not None:
            (tmp_path / f"{name}.txt").write_text(names.replace(",", "\n"))
            asked = ("--class-names", tmp_path / f"{name}.txt")
        call("plan", *shared, *asked, "--out", tmp_path / name)
        with pytest.raises(FederationError, match=r"(low|top) among them.*--class-names FILE"):
            call("answer", tmp_path / name / "plan.json", *told, "--out", tmp_path / "answer")
    assert not (tmp_path / "answer").exists()
    assert list((tmp_path / "state").rglob("ledger.jsonl")) == []
    (tmp_path / "names.txt").write_text("top\nmiddle\nlow\n")
    call("plan", *shared, "--class-names", tmp_path / "names.txt", "--out", tmp_path / "right")
    call("answer", tmp_path / "right" / "plan.json", *told, "--out", tmp_path / "answer")
    assert len(list((tmp_path / "state").rglob("ledger.jsonl"))) == 1
