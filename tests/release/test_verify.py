"""`gswgan verify` passes what every kind of run leaves, and finds what has been changed: one row of the table each."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packed import BASELINES, FEDERATED, ROUNDS, a_copy, a_release, edit, rechain, repack, rows
from tampering import (
    Tamper,
    ledger,
    plan,
    tensors,
)

from gswgan.errors import RunError
from gswgan.generators.sampling import png_bytes
from gswgan.privacy.events import from_json, to_json, unsampled
from gswgan.release.files import MANIFEST, checksum, read_plain
from gswgan.release.verify import verify
from gswgan.run.folder import find_release, write_json
from gswgan.run.publish import card, cost_of_ledger, privacy_statement

KINDS = (
    "kernel", "zeroed", "unlabelled", "persons", "colour", "evil", "ensemble", "paper", *BASELINES, *FEDERATED, *ROUNDS,
    "again-kernel", "again-trusted-aggregator",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_clean_release_of_every_kind_passes(kind: str) -> None:
    folder = a_release(kind)
    verdict = verify(folder)
    assert verdict.findings == ()
    assert verdict.cost is not None
    stated = json.loads((folder / "privacy.json").read_text())
    assert verdict.cost.epsilon == pytest.approx(stated["epsilon"])
    assert verdict.releases == len((folder / "ledger.jsonl").read_text().splitlines()) - 1
    assert verdict.digest == checksum(folder / MANIFEST)
    for digest in (verdict.digest, verdict.head):
        assert verify(folder, digest).findings == ()


def test_a_release_that_was_repeated_passes_at_its_cost(tmp_path: Path) -> None:
    folder = a_copy("dp-sgd-gan", tmp_path / "release")
    before = verify(folder).cost
    header, *entries = rows(folder)
    again = {**entries[2], "attempt": 1, "event": to_json(unsampled(from_json(entries[2]["event"])))}
    rechain(folder, [header, *entries, again])
    release = find_release(folder)
    plan = release.plan()
    write_json(folder / "privacy.json", privacy_statement(plan, cost_of_ledger(plan, release)))
    labels = json.loads((folder / "model.json").read_text())["labels"]
    (folder / "card.md").write_text(card(plan, json.loads((folder / "privacy.json").read_text()), labels))
    verdict = verify(repack(folder))
    assert (verdict.findings, verdict.repeated) == ((), 1)
    assert verdict.cost.epsilon > before.epsilon * 1.001


def test_the_manifest_names_the_plan_and_the_ledgers_head(tmp_path: Path) -> None:
    for key, where in (("plan", "model.json"), ("ledger_head", "ledger.jsonl")):
        folder = a_copy("kernel", tmp_path / key)
        edit(folder / MANIFEST, lambda content, key=key: content.update({key: "0" * 64}))
        assert [finding.where for finding in verify(folder).findings] == [where]
    folder = a_copy("kernel", tmp_path / "more")
    edit(folder / MANIFEST, lambda content: content.update(note="17"))
    assert [finding.where for finding in verify(folder).findings] == [MANIFEST]


@pytest.mark.parametrize("name", ["samples.png", "model.json", "ledger.jsonl", "embedding.safetensors", MANIFEST])
def test_a_file_far_too_large_is_not_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_copy("kernel", tmp_path / "release")
    os.truncate(folder / name, 2**31 + 1)  # sparse

    def small(path: Path, read: Callable[..., Any] = checksum) -> Any:
        assert path.name != name, "it was read"
        return read(path)

    monkeypatch.setattr("gswgan.release.verify.checksum", small)
    monkeypatch.setattr("gswgan.release.verify.read_plain", functools.partial(small, read=read_plain))
    findings = verify(folder).findings
    assert (findings[0].where, "where no release has more" in findings[0].what) == (name, True)


@pytest.mark.parametrize("name", ["ledger.jsonl", "embedding.safetensors", "generator.safetensors"])
def test_what_the_plan_has_no_room_for_is_not_read(name: str, tmp_path: Path) -> None:
    """Within the bounds of any release, sealed, and far beyond those of this plan."""
    folder = a_copy("kernel", tmp_path / "release")
    os.truncate(folder / name, 2**24)
    write_json(folder / MANIFEST, {
        **json.loads((a_release("kernel") / MANIFEST).read_text()),
        "files": {path.name: checksum(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST},
    })  # fmt: skip
    finding = verify(folder).findings[0]
    assert finding.where == name
    assert "bytes" in finding.what or "another size" in finding.what


@pytest.mark.parametrize("name", ["samples.png", "ledger.jsonl", MANIFEST, "more"])
def test_pipes_are_refused_and_not_opened(name: str, tmp_path: Path) -> None:
    folder = a_copy("kernel", tmp_path / "release")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)  # reading it would wait for ever
    if name == MANIFEST:
        with pytest.raises(RunError, match=MANIFEST):
            verify(folder)
    else:
        assert f"{name!r} is not a plain file" in " ".join(map(str, verify(folder).findings))


REBUILT: dict[str, Tamper] = {
    "the ledger": ledger(lambda found: [found[0], {**found[1], "name": "embedding 2"}]),
    "the plan": plan("seed", value=5),
    "the weights": tensors("generator.safetensors", lambda found: found["body.0.bias"][:1].add_(1e-6)),
    "the embedding": tensors("embedding.safetensors", lambda found: found["sums"][0, 0].add_(2.0)),
}


@pytest.mark.parametrize("name", REBUILT)
def test_what_was_rebuilt_as_a_whole_is_found_by_the_published_digest(name: str, tmp_path: Path) -> None:
    honest = verify(a_release("kernel"))
    folder = a_copy("kernel", tmp_path / "release")
    REBUILT[name](folder)
    if name == "the plan":
        seeded = find_release(folder)
        labels = json.loads((folder / "model.json").read_text())["labels"]
        text = card(seeded.plan(), json.loads((folder / "privacy.json").read_text()), labels)
        (folder / "card.md").write_text(text)
    if name in ("the plan", "the weights"):  # their picture is another one
        _redraw(folder)
    repack(folder)
    assert verify(folder).findings == ()  # sound in itself
    assert "was replaced or rebuilt" in str(verify(folder, honest.digest).findings[0])
    if name in ("the ledger", "the plan"):
        assert "was replaced or rebuilt" in str(verify(folder, honest.head).findings[0])


def _redraw(folder: Path) -> None:
    from gswgan.run.publish import draw_picture
    from gswgan.run.released import load

    model = load(folder, device="cpu")
    picture = draw_picture(model.plan, model.network, model.kept.tolist())
    (folder / "samples.png").write_bytes(png_bytes(np.rint(picture).astype(np.uint8)))
