"""Files that are no answers, or one id twice, in a round by files: refused, and nothing of them is taken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from test_by_files import SITES, answered, call, planned, sites

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
