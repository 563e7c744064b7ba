"""`gswgan verify` finds what has been changed in a bundle: one row of the tables each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from packed import a_copy, a_release, edit, repack, replan
from tampering import (
    Tamper,
    another_picture,
    compressed_picture,
    cut,
    exact_counts,
    flip,
    from_another_run,
    hidden_in_picture,
    keyless,
    ledger,
    lines,
    link,
    one_level_off,
    padded,
    plan,
    statement,
    tensors,
    text_in_picture,
    wrote,
)

from gswgan.release.files import MANIFEST
from gswgan.release.verify import verify
from gswgan.run.folder import write_json

FILES = ("card.md", "embedding.safetensors", "generator.safetensors", "ledger.jsonl", "model.json", "privacy.json",
         "samples.png", MANIFEST)  # fmt: skip

CARELESS: dict[str, tuple[str, Tamper]] = {
    **{f"a flipped byte in {name} at {at:.0%}": (name, flip(name, at)) for name in FILES for at in (0.2, 0.7)},
    **{f"{name} cut short": (name, cut(name)) for name in FILES},
    **{f"{name} removed": (name, lambda folder, name=name: (folder / name).unlink()) for name in FILES[:-1]},
    **{f"{name} is a link": (name, link(name)) for name in ("ledger.jsonl", "samples.png")},
    "a smuggled file": ("records.npz", lambda folder: (folder / "records.npz").write_bytes(b"1")),
    "a hidden file": (".notes", lambda folder: (folder / ".notes").write_text("1")),
    "a folder": ("figures", lambda folder: (folder / "figures").mkdir()),
    "a link to a folder": ("more", lambda folder: (folder / "more").symlink_to(folder.parent)),
    "a file of another kind of run": ("federation.json", lambda folder: (folder / "federation.json").write_text("{}")),
    "a removed ledger line": ("ledger.jsonl", lines(lambda found: found[:-1])),
    "a repeated ledger line": ("ledger.jsonl", lines(lambda found: [*found, found[-1]])),
    "reordered ledger lines": ("ledger.jsonl", lines(lambda found: found[::-1])),
}
"""The manifest is left as it was."""


@pytest.mark.parametrize("name", CARELESS)
def test_a_change_under_an_old_manifest_is_found(name: str, tmp_path: Path) -> None:
    where, tamper = CARELESS[name]
    folder = a_copy("kernel", tmp_path / "release")
    tamper(folder)
    findings = verify(folder).findings
    assert findings
    assert where in ({finding.where for finding in findings} | {MANIFEST})  # a flip there may name another file
    assert all(finding.what and finding.means.endswith(".") for finding in findings)


CAREFUL: dict[str, tuple[str, str, Tamper]] = {
    # the ledger, its chain broken
    "a line removed": ("ensemble", "chain breaks at line 4", lines(lambda found: found[:3] + found[4:])),
    "a line repeated": ("ensemble", "chain breaks at line 5", lines(lambda found: [*found[:4], *found[3:]])),
    "lines reordered": ("ensemble", "chain breaks at line 3", lines(lambda f: [*f[:2], f[3], f[2], *f[4:]])),
    "a line changed": ("ensemble", "chain breaks at line 2", lines(
        lambda f: [f[0], f[1].replace("0", "1", 1), *f[2:]])),
    # the ledger, its chain built anew
    "the last line removed": ("ensemble", "has 7 releases", ledger(lambda found: found[:-1])),
    "all lines removed": ("kernel", "has 0 releases", ledger(lambda found: found[:1])),
    "a line added": ("ensemble", "has 9 releases", ledger(lambda f: [*f, {**f[-1], "name": "step 99"}])),
    "a line twice": ("ensemble", "under 8 names", ledger(lambda f: [*f, f[-1]])),
    "a line renamed as another": ("ensemble", "under 7 names", ledger(
        lambda f: [*f[:-1], {**f[-1], "name": "step 0"}])),
    "a first attempt missing": ("ensemble", "has 7 releases", ledger(lambda f: [*f[:-1], {**f[-1], "attempt": 1}])),
    "a repeat at the cost of a first time": ("dp-sgd-gan", "at another cost", ledger(
        lambda f: [*f, {**f[-1], "attempt": 1}])),
    "a repeat too far": ("kernel", "attempt 2", ledger(lambda f: [*f, {**f[-1], "attempt": 2}])),
    "another noise in the ledger": ("kernel", "has 1 releases", ledger(
        lambda f: [f[0], {**f[1], "event": {**f[1]["event"], "noise_std": 9.0}}])),
    "another rate in the ledger": ("dp-sgd-gan", "2 kind(s)", ledger(
        lambda f: [*f[:-1], {**f[-1], "event": {**f[-1]["event"], "rate": 0.001}}])),
    "another K in the ledger": ("paper", "2 kind(s)", ledger(
        lambda f: [*f[:-1], {**f[-1], "event": {**f[-1]["event"], "count": 1000}}])),
    "another observer": ("kernel", "observer", ledger(lambda f: [{**f[0], "observer": "server"}, *f[1:]])),
    "another plan's ledger": ("kernel", "another plan", ledger(lambda f: [{**f[0], "context": "0" * 64}, *f[1:]])),
    "a note in a ledger line": ("kernel", "more than the lines", ledger(lambda f: [f[0], {**f[1], "note": "17"}])),
    "blanks in a ledger line": ("kernel", "more than the lines", wrote(
        "ledger.jsonl", lambda t: t.replace(", ", ",  "))),
    "the ledger of another run": ("kernel", "another plan", from_another_run("ledger.jsonl")),
    "another ledger under a new generator": ("again-kernel", "another plan", ledger(
        lambda f: [f[0], {**f[1], "name": "embedding again"}])),
    # the plan, its digest and the ledger's context with it
    "another K": ("paper", "kind(s) that the plan says", plan("privacy", "critics", value=100)),
    "another noise": ("kernel", "that the plan says", plan("privacy", "noise_std", value=5.0)),
    "another number of releases": ("ensemble", "not the 7", lambda folder: replan(folder, lambda t: (
        t["privacy"].update(releases=7), t["training"].update(steps=7), t.update(curve=[])))),
    "less epsilon planned and stated": ("kernel", "epsilon 0.1", lambda folder: (
        plan("guarantee", "epsilon", value=0.1)(folder), statement(epsilon=0.1)(folder))),
    "more epsilon planned": ("kernel", "plans epsilon 11", plan("guarantee", "epsilon", value=11.0)),
    "another delta planned": ("kernel", "states delta", lambda folder: replan(folder, lambda t: (
        t["privacy"].update(delta=1e-9), t["guarantee"].update(delta=1e-9)))),
    "a claim added to the plan": ("kernel", "states claimed", plan(
        "claimed", value={"epsilon": 0.1, "delta": 1e-5, "accounting": "mine"})),
    "the plan edited, its digest not": ("kernel", "plan.digest", lambda folder: edit(
        folder / "model.json", lambda content: content["plan"].update(seed=5))),
    "noise from the seed": ("kernel", "NO", plan("insecure_reproducible", value=True)),
    "a note in model.json": ("kernel", "just method", lambda folder: edit(
        folder / "model.json", lambda content: content.update(note="17"))),
    "another method's name": ("kernel", "just method", lambda folder: edit(
        folder / "model.json", lambda content: content.update(method="dp-merf"))),
    "a key twice in model.json": ("kernel", "not written", wrote(
        "model.json", lambda text: text.replace("{", '{\n "method": "gan",', 1))),
    "more classes": ("ensemble", "labels", lambda folder: edit(
        folder / "model.json", lambda content: content.update(labels=[0, 1, 2, 3]))),
    "fewer classes of an ensemble": ("ensemble", "other labels", lambda folder: edit(
        folder / "model.json", lambda content: content.update(labels=[0, 1]))),
    "fewer classes": ("kernel", "other labels", lambda folder: edit(
        folder / "model.json", lambda content: content.update(labels=[0, 1]))),
    # the statement
    "less epsilon stated": ("kernel", "states epsilon 9.9", statement(epsilon=9.9)),
    "more epsilon stated": ("kernel", "states epsilon 11", statement(epsilon=11.0)),
    "no epsilon stated": ("kernel", "states epsilon None", statement(epsilon=None)),
    "epsilon that is no number": ("kernel", "states epsilon nan", statement(epsilon=float("nan"))),
    "another delta": ("kernel", "states delta", statement(delta=1e-9)),
    "another unit": ("kernel", "states unit", statement(unit="person")),
    "another relation": ("kernel", "states neighbours", statement(neighbours="zeroed")),
    "another figure in the list": ("kernel", "guarantees[0].epsilon", lambda folder: edit(
        folder / "privacy.json", lambda content: content["guarantees"][0].update(epsilon=1.0))),
    "the honest figure in place of the claim": ("paper", "states claimed.epsilon", lambda folder: edit(
        folder / "privacy.json", lambda content: content["claimed"].update(epsilon=1.0))),
    "the lower bound gone": ("paper", "states lower_bound", statement(lower_bound=None)),
    "a key twice in privacy.json": ("kernel", "not written", wrote(
        "privacy.json", lambda text: text.replace("{", '{\n "epsilon": 0.1,', 1))),
    "the open server hidden": ("trusted-aggregator", "states keys", lambda folder: write_json(
        folder / "privacy.json", keyless(json.loads((folder / "privacy.json").read_text())))),
    "another federation": ("trusted-aggregator", "states trust", lambda folder: edit(
        folder / "federation.json", lambda content: content.update(trust="untrusted-server"))),
    "another federation of rounds": ("rounds", "states trust", lambda folder: edit(
        folder / "federation.json", lambda content: content.update(trust="untrusted-server"))),
    "no federation of rounds": ("rounds", "the plan has one", lambda folder: (folder / "federation.json").unlink()),
    "no federation": ("trusted-aggregator", "the plan has one", lambda folder: (folder / "federation.json").unlink()),
    # what is not JSON
    "an edited card": ("kernel", "not the card", wrote(
        "card.md", lambda text: text.replace("epsilon 10", "epsilon 1"))),
    "a note on the card": ("kernel", "not the card", wrote("card.md", lambda text: text + "\nrecord 17\n")),
    "another picture": ("kernel", "not the picture", another_picture),
    "words in the picture": ("kernel", "not the picture", text_in_picture),
    "bytes behind the picture": ("kernel", "not the picture", lambda folder: (folder / "samples.png").write_bytes(
        (folder / "samples.png").read_bytes() + b"record 17")),
    "another generator": ("kernel", "not the picture", tensors(
        "generator.safetensors", lambda found: [value.mul_(-1) for key, value in found.items() if "bias" in key])),
    "a tensor more in the generator": ("kernel", "weights", tensors(
        "generator.safetensors", lambda found: found.update(record=torch.ones(3)))),
    "words in the generator": ("kernel", "weights", tensors("generator.safetensors", lambda found: None, note="17")),
    "blanks in the header of the generator": ("kernel", "weights", padded("generator.safetensors")),
    "blanks in the header of the embedding": ("kernel", "sums, counts and noise", padded("embedding.safetensors")),
    "weights in double precision": ("kernel", "weights", tensors("generator.safetensors", lambda found: found.update(
        {key: value.double() for key, value in found.items()}))),
    "pixels hidden in the picture": ("kernel", "not the picture", hidden_in_picture),
    "pixels hidden in a picture with colours": ("colour", "not the picture", hidden_in_picture),
    "one pixel of the picture is another": ("kernel", "not the picture", one_level_off),
    "the picture is compressed": ("kernel", "not the picture", compressed_picture),
    "counts off the grid": ("kernel", "cannot have had", tensors("embedding.safetensors", exact_counts)),
    "counts of persons off the grid": ("persons", "cannot have had", tensors(
        "embedding.safetensors", lambda found: found["counts"].add_(2.0**-40))),
    "another number of records": ("unlabelled", "cannot have had", tensors(
        "embedding.safetensors", lambda found: found["counts"].add_(1))),
    "counts that no noise explains": ("kernel", "cannot have had", tensors(
        "embedding.safetensors", lambda found: found["counts"].add_(2.0**20))),
    "counts in single precision": ("kernel", "sums, counts and noise", tensors(
        "embedding.safetensors", lambda found: found.update(counts=found["counts"].float()))),
    "sums in single precision": ("kernel", "sums, counts and noise", tensors(
        "embedding.safetensors", lambda found: found.update(sums=found["sums"].float()))),
    "less noise recorded on the counts": ("kernel", "on its counts", tensors(
        "embedding.safetensors", lambda found: found["noise"][1].div_(10))),
    "less noise recorded on the counts of persons": ("persons", "on its counts", tensors(
        "embedding.safetensors", lambda found: found["noise"][1].div_(10))),
    "line ends of the card": ("kernel", "not the card", lambda folder: (folder / "card.md").write_bytes(
        (folder / "card.md").read_bytes().replace(b"\n", b"\r\n", 3))),
    "line ends of model.json": ("kernel", "not written", lambda folder: (folder / "model.json").write_bytes(
        (folder / "model.json").read_bytes().replace(b"\n", b"\r\n", 3))),
    "another order in model.json": ("kernel", "just method", lambda folder: (folder / "model.json").write_text(
        json.dumps(dict(reversed(json.loads((folder / "model.json").read_text()).items())), indent=1) + "\n")),
    "another order in privacy.json": ("kernel", "states keys", lambda folder: (folder / "privacy.json").write_text(
        json.dumps(dict(reversed(json.loads((folder / "privacy.json").read_text()).items())), indent=1) + "\n")),
    "a number of the ledger written otherwise": ("kernel", "more than the lines", ledger(
        lambda f: [f[0], {**f[1], "event": {**f[1]["event"], "sensitivity": 2}}])),
    "a generator that is not finite": ("kernel", "weights", tensors(
        "generator.safetensors", lambda found: found["body.0.bias"][:1].fill_(float("nan")))),
    "no generator at all": ("kernel", "weights", lambda folder: (folder / "generator.safetensors").write_bytes(b"1")),
    "a tensor more in the embedding": ("kernel", "sums, counts and noise", tensors(
        "embedding.safetensors", lambda found: found.update(exact=torch.ones(3)))),
    "an embedding that is not finite": ("kernel", "sums, counts and noise", tensors(
        "embedding.safetensors", lambda found: found["sums"][0].fill_(float("inf")))),
    "an embedding with a number beyond all bounds": ("kernel", "cannot have had", tensors(
        "embedding.safetensors", lambda found: found["sums"][0].fill_(torch.finfo(found["sums"].dtype).max))),
    "an embedding with other noise": ("kernel", "says noise", from_another_run("embedding.safetensors")),
    "an embedding off the grid": ("kernel", "cannot have had", tensors(
        "embedding.safetensors", lambda found: found["sums"][0].mul_(1.0000001))),
    "no embedding": ("kernel", "the plan has one", lambda folder: (folder / "embedding.safetensors").unlink()),
    "an embedding of nothing": ("ensemble", "the plan has none", lambda folder: (
        folder / "embedding.safetensors").write_bytes((a_release("kernel") / "embedding.safetensors").read_bytes())),
}  # fmt: skip
"""The manifest is made anew to fit: of which kind of run, what is said, and the change."""


@pytest.mark.parametrize("name", CAREFUL)
def test_a_change_under_a_new_manifest_is_found(name: str, tmp_path: Path) -> None:
    kind, said, tamper = CAREFUL[name]
    folder = a_copy(kind, tmp_path / "release")
    tamper(folder)
    findings = verify(repack(folder)).findings
    assert findings
    assert said in " ".join(map(str, findings))
