"""Every reader against files and messages that were damaged at random.

A reader may give data or one of the package's own errors; a packed release that was changed must not verify. Anything
else is a failure: another exception, a death, more than a gigabyte of memory for a few kilobytes. Each reader runs in
a process of its own. Ten minutes of each reader are recorded in benchmarks/results/fuzz-cpu.json.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import math
import os
import random
import resource
import shutil
import struct
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import damaged, damaged_json, damaged_lines
from PIL import Image
from works import CPU, ManyRounds, OneRound, Training

from gswgan import load_data
from gswgan.critics.kernel.embedding import Embedding
from gswgan.data.persons import persons_of, read_ids
from gswgan.errors import GswganError
from gswgan.federated import messages
from gswgan.methods import read_plan
from gswgan.privacy.ledger import Ledger, read_journal, read_ledger
from gswgan.privacy.randomness import create_key, load_key
from gswgan.release.files import MANIFEST, checksum
from gswgan.release.pack import pack
from gswgan.release.verify import verify
from gswgan.run.budget import Budget
from gswgan.run.checkpoint import Checkpoint
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from gswgan.run.released import load

Reader = Callable[[Path, bytes], Any]
"""Puts the content into the empty folder and reads it."""
SHORT, LONG = 60, 5000
"""Damaged contents for each reader in the default suite and in the slow one."""
MAX_MEGABYTES = 1000


def a_file(name: str, read: Callable[[Path], Any]) -> Reader:
    def reader(folder: Path, content: bytes) -> Any:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o600)  # a key that others can read is refused unread
        return read(path)

    return reader


def _message(read: Callable[[dict[str, Any]], Any], fields: dict[str, Any], name: str) -> Reader:
    """A message with the content in one of its fields."""
    text = isinstance(fields[name], str)
    return lambda folder, content: read({**fields, name: content.decode("utf-8", "replace") if text else content})


def _npz(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def _picture(image: np.ndarray, kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, kind)
    return out.getvalue()


def readers(place: Path) -> dict[str, tuple[Reader, list[bytes], Callable[[bytes, random.Random], bytes]]]:
    """Each reader with whole contents, and how they are damaged."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (4, 8, 8), dtype=np.uint8), np.array([0, 1, 2, 1], np.uint8)
    training = Training("kernel", 4)
    plan = dataclasses.replace(training.plan, insecure_reproducible=False)
    folder = RunFolder.create(place / "run", plan)
    run(folder, training.data, device=CPU)
    pack(folder.root, place / "packed")
    round_plan, rounds = OneRound("trusted-aggregator", 10).plan, ManyRounds("trusted-aggregator", 10).plan
    pool = messages.pool_size(rounds)
    classes = torch.cat([torch.arange(pool) % 3, torch.zeros(rounds.privacy.rows, dtype=torch.int64)])
    batch = messages.Batch(number=0, images=torch.rand(len(classes), 1, 8, 8), labels=classes, pool=pool)
    asked = messages.question(rounds, batch)
    block = bytes(4 * rounds.privacy.rows * 64)
    answered = messages.answer("person 0", rounds, block, 0)
    journal = place / "journal.jsonl"
    ledger = Ledger(place / "ledger.jsonl", observer="public", context="fuzz", journal=journal)
    for step in range(4):
        ledger.record(f"step {step}", plan.privacy.event, f"{step:064}")  # type: ignore[union-attr]
    create_key(place / "key.json", "fuzz")
    Checkpoint(place / "checkpoint", "fuzz").save(3, {"generator": {"a": torch.rand(5, 3), "b": torch.arange(3)}})
    budget = Budget.create(place / "budget", epsilon=50.0, delta=1e-4)
    budget.reserve("run", plan, training.data, where="run")
    leaf = {"users": ["a", "b"], "num_samples": [1, 2], "user_data": {
        "a": {"x": [[0.5] * 784], "y": [3]}, "b": {"x": [[1.0] * 784] * 2, "y": [1, 2]}}}  # fmt: skip
    writers = np.repeat(np.arange(4), 1)
    femnist = _npz(images=rng.integers(0, 256, (4, 28, 28), dtype=np.uint8), labels=labels.astype(np.int64),
                   writers=writers, split=np.zeros(4, np.uint8))  # fmt: skip

    def changed(folder: Path, content: bytes) -> Path:
        """A copy of the packed release with one file changed: its name, a line break, its content."""
        name, _, new = content.partition(b"\n")
        shutil.copytree(place / "packed", folder / "copy")
        (folder / "copy" / name.decode()).write_bytes(new)
        return folder / "copy" / name.decode()

    def found_out(folder: Path, content: bytes) -> None:
        path = changed(folder, content)
        whole = (place / "packed" / path.name).read_bytes()
        if path.read_bytes() != whole and not verify(path.parent).findings:
            raise AssertionError(f"a release with another {path.name} verified")

    def forged(folder: Path, content: bytes) -> None:
        """With its checksum and the ledger's head made right: what stands behind them is read, and nothing raises."""
        path = changed(folder, content)
        manifest = json.loads((path.parent / MANIFEST).read_bytes())
        manifest["files"][path.name] = checksum(path)
        if path.name == "ledger.jsonl":
            with contextlib.suppress(GswganError):
                manifest["ledger_head"] = read_ledger(path)[2]
        (path.parent / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        verify(path.parent)

    def damaged_release(content: bytes, draw: random.Random) -> bytes:
        name, _, rest = content.partition(b"\n")
        way = damaged_json if name.endswith(b".json") else damaged_lines if name.endswith(b".jsonl") else damaged
        return name + b"\n" + way(rest, draw)

    packed = sorted((place / "packed").iterdir())
    named = [path.name.encode() + b"\n" + path.read_bytes() for path in packed]

    def data(path: Path) -> Any:
        file = path if path.suffix == ".npz" else path.parent
        return load_data(file, image_size=16, classes=3 if file is path else None)

    found: dict[str, tuple[Reader, list[bytes], Any]] = {
        "idx": (a_file("d/train-images-idx3-ubyte", data), [_idx(images)], damaged),
        "idx, gzip": (a_file("d/train-images-idx3-ubyte.gz", data), [gzip.compress(_idx(images))], damaged),
        "npz": (a_file("d.npz", data), [_npz(images=images, labels=labels)], damaged),
        "images": (
            a_file("d/zero/a.png", lambda path: load_data(path.parent.parent, image_size=16)),
            [_picture(images[0], kind) for kind in ("PNG", "JPEG", "BMP")], damaged,
        ),
        "LEAF": (a_file("d/all_data_0.json", lambda path: load_data(path.parent)), [json.dumps(leaf).encode()],
                 damaged_json),
        "FEMNIST npz": (a_file("f.npz", lambda path: load_data(path, classes=62)), [femnist], damaged),
        "clients": (a_file("p.txt", read_ids), [b"anna\nbert\nanna\ncarl\n", b"\xef\xbb\xbf1\r\n2\r\n"], damaged),
        "persons": (a_file("p.csv", lambda path: persons_of(path, None, 3, "own")),
                    [b"index,person\n0,anna\n2,bert\n1,\n", b"\xef\xbb\xbfindex;person\r\n2;7\r\n1;7\r\n0;8\r\n"],
                    damaged),
        "plan": (a_file("plan.json", read_plan), [json.dumps(plan.to_json()).encode()], damaged_json),
        "ledger": (a_file("ledger.jsonl", read_ledger), [ledger.path.read_bytes()], damaged_lines),
        "journal": (a_file("journal.jsonl", read_journal), [journal.read_bytes()], damaged_lines),
        "budget": (a_file("budget", Budget), [(place / "budget").read_bytes()], damaged_lines),
        "key": (a_file("key.json", lambda path: load_key(path, "fuzz")), [(place / "key.json").read_bytes()],
                damaged_json),
        "checkpoint": (a_file("c", lambda path: Checkpoint(path, "fuzz").load()),
                       [(place / "checkpoint").read_bytes()], damaged),
        "embedding": (a_file("e", Embedding.load), [folder.embedding.read_bytes()], damaged),
        "generator": (
            lambda empty, content: _loaded(empty, folder.root, content), [folder.generator.read_bytes()], damaged,
        ),
        "question of a round": (_message(messages.read_plan, dict(messages.question(round_plan)), "plan"),
                                [json.dumps(round_plan.to_json()).encode()], damaged_json),
        "question of Algorithm 2, plan": (_message(_read_question, dict(asked), "plan"),
                                          [str(asked["plan"]).encode()], damaged_json),
        "question of Algorithm 2, fakes": (_message(_read_question, dict(asked), "images"),
                                           [bytes(asked["images"])], damaged),  # type: ignore[arg-type]
        "answer of Algorithm 2": (_message(lambda given: messages.read_answer(given, rounds, 0),
                                           dict(answered), "block"), [block], damaged),
        "answer of a round": (lambda empty, content: messages.unpack(content, round_plan),
                              [bytes(4 * math.prod(messages.shape_of(round_plan)))], damaged),
    }  # fmt: skip
    found["verify"] = (found_out, named, damaged_release)
    forgeable = [content for content in named if not content.startswith(MANIFEST.encode())]
    found["verify, checksums made right"] = (forged, forgeable, damaged_release)
    return found


def _read_question(fields: messages.Fields) -> object:
    return messages.read_batch(messages.read_plan(fields), fields)


def _loaded(empty: Path, run_folder: Path, content: bytes) -> None:
    shutil.copytree(run_folder / "release", empty / "run/release")
    (empty / "run/release/generator.safetensors").write_bytes(content)
    load(empty / "run/release", device="cpu").sample(2)


READERS = (
    "idx", "idx, gzip", "npz", "images", "LEAF", "FEMNIST npz", "persons", "persons npz", "plan", "ledger", "journal",
    "budget", "key", "checkpoint", "embedding", "generator", "question of a round", "question of Algorithm 2, plan",
    "question of Algorithm 2, fakes", "answer of Algorithm 2", "answer of a round", "verify",
    "verify, checksums made right",
)  # fmt: skip


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return readers(tmp_path_factory.mktemp("whole"))


def test_every_reader_is_named(known: dict[str, Any]) -> None:
    assert tuple(known) == READERS


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("tries", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, known: dict[str, Any], name: str, tries: int) -> None:
    said = tmp_path / "said"
    if (child := os.fork()) == 0:
        try:
            fuzz(*known[name], tries, random.Random(name), tmp_path)
            os._exit(0)
        except BaseException:
            said.write_text(traceback.format_exc())
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status == 0, said.read_text() if said.exists() else f"the process ended with status {status}"


def fuzz(
    reader: Reader, whole: list[bytes], damage: Callable[..., bytes], tries: int, draw: random.Random, place: Path
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for content in whole:
        read(reader, content, place)  # whole, it is read
    for _ in range(tries):
        content = damage(draw.choice(whole), draw)
        try:
            with contextlib.suppress(GswganError):
                read(reader, content, place)
        except Exception as wrong:
            raise AssertionError(f"{content[:300]!r} of {len(content)} bytes") from wrong
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert megabytes <= MAX_MEGABYTES


def read(reader: Reader, content: bytes, place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place) as empty:
        reader(Path(empty), content)


def test_a_reader_that_raises_something_else_is_found(tmp_path: Path) -> None:
    def careless(folder: Path, content: bytes) -> Any:
        return json.loads(content)["a"]

    with pytest.raises(AssertionError, match="bytes"):
        fuzz(careless, [b'{"a": 1}'], damaged, SHORT, random.Random(0), tmp_path)
