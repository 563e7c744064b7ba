"""Every reader against files and messages that were damaged at random, for so many seconds each.

    python benchmarks/fuzz.py --seconds 600 --jobs 2 --out benchmarks/results/fuzz-cpu.json

A reader may give data or one of the package's own errors; a packed release that was changed must not verify. Anything
else is a failure: another exception, a death, more than a gigabyte of memory for a few kilobytes. Bytes are turned,
taken out, put in, doubled and cut; in JSON also values are replaced, and a chain of digests is then made whole again,
so that what stands behind the digest is reached. Each reader runs in a process of its own.
"""

from __future__ import annotations

import argparse
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
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from gswgan import load_data
from gswgan.api import load
from gswgan.critics.kernel.embedding import Embedding
from gswgan.data.persons import read_persons
from gswgan.errors import GswganError
from gswgan.federated import messages
from gswgan.plan.plan import Plan
from gswgan.privacy.ledger import Ledger, chained_line, read_journal, read_ledger
from gswgan.privacy.randomness import create_key, load_key
from gswgan.release.files import MANIFEST, checksum
from gswgan.release.pack import pack
from gswgan.release.verify import verify
from gswgan.run.budget import Budget
from gswgan.run.checkpoint import Checkpoint
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from kills import CPU, ManyRounds, OneRound, Training
from record import record

Reader = Callable[[Path, bytes], Any]
"""Puts the content into the empty folder and reads it."""

HOSTILE = (
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "x" * 5000,
    [],
    {},
    [[]],
    {"a": 1},
    "\ud800",
)
MAX_MEGABYTES = 1000


def damaged(content: bytes, draw: random.Random) -> bytes:
    """A few bytes turned, taken out, put in, doubled or cut off."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place, size = draw.randint(0, len(changed)), draw.choice((1, 1, 2, 4, 30))
        how = draw.randrange(6)
        if how == 0 and place < len(changed):
            changed[place] ^= 1 << draw.randrange(8)
        elif how == 1:
            del changed[place : place + size]
        elif how == 2:
            changed[place:place] = draw.randbytes(size)
        elif how == 3:
            changed[place : place + size] = draw.choice((b"\0", b"\xff")) * size
        elif how == 4:
            changed[place:place] = changed[max(0, place - size) : place]
        elif draw.random() < 0.2:
            del changed[place:]
    return bytes(changed)


def with_another_value(value: Any, draw: random.Random) -> Any:
    """The JSON with a value somewhere replaced, taken out or doubled."""
    if isinstance(value, (dict, list)) and value and draw.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw.choice(keys)
        if draw.random() < 0.1:
            kept: Any = value.copy()
            del kept[key]
            return kept
        new = with_another_value(value[key], draw)
        return {**value, key: new} if isinstance(value, dict) else [*value[:key], new, *value[key + 1 :]]
    if isinstance(value, (int, float)) and draw.random() < 0.5:
        return draw.choice((value + 1, -value, value * 1000, str(value)))
    return draw.choice(HOSTILE)


def damaged_json(content: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.4:
        return damaged(content, draw)
    return json.dumps(with_another_value(json.loads(content), draw)).encode()


def damaged_lines(content: bytes, draw: random.Random) -> bytes:
    """Of a chain: a value in a row, or whole rows, and the chain made again."""
    if draw.random() < 0.3:
        return damaged(content, draw)
    rows = [json.loads(line) for line in content.splitlines()]
    place = draw.randrange(len(rows))
    how = draw.randrange(4)
    if how == 0:
        rows.insert(place, rows[draw.randrange(len(rows))])
    elif how == 1:
        del rows[place]
    else:
        rows[place] = with_another_value(rows[place], draw)
    text, head = "", ""
    for row in rows:
        if not isinstance(row, dict) or "digest" not in row:
            text += json.dumps(row) + "\n"
            continue
        line, head = chained_line({k: v for k, v in row.items() if k not in ("digest", "previous")}, head)
        text += line
    return text.encode()


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
    assert rounds.privacy is not None
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
        "persons": (a_file("p.txt", read_persons), [b"anna\nbert\nanna\ncarl\n", b"\xef\xbb\xbf1\r\n2\r\n"], damaged),
        "persons npz": (a_file("p.npz", read_persons), [_npz(persons=np.array([3, 1, 3, 2]))], damaged),
        "plan": (a_file("plan.json", Plan.load), [json.dumps(plan.to_json()).encode()], damaged_json),
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


def fuzz(name: str, given: Any, seconds: float, seed: int, place: Path) -> dict[str, Any]:
    """One reader in a process of its own."""
    out = place / "result.json"
    place.mkdir()
    if (child := os.fork()) == 0:
        try:
            out.write_text(json.dumps(_fuzz(given, seconds, random.Random(f"{seed} {name}"), place)))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    row = {"reader": name, "failures": [f"the process ended with status {status}"], "tries": 0}
    if status == 0:
        row = {"reader": name, **json.loads(out.read_text())}
    print(f"{name}: {row['tries']} tries, {len(row['failures'])} failures", flush=True)
    return row


def _fuzz(given: Any, seconds: float, draw: random.Random, place: Path) -> dict[str, Any]:
    reader, whole, damage = given
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes, failures, slowest = Counter[str](), dict[str, str](), 0.0
    end, tries = time.monotonic() + seconds, 0
    for content in whole:
        _once(reader, content, place)  # whole, it is read
    while time.monotonic() < end:
        content, tries, began = damage(draw.choice(whole), draw), tries + 1, time.monotonic()
        try:
            _once(reader, content, place)
            outcomes["read"] += 1
        except GswganError as wrong:
            outcomes[type(wrong).__name__] += 1
        except Exception as wrong:
            last = traceback.extract_tb(wrong.__traceback__)[-1]
            text = f"{type(wrong).__name__}: {str(wrong)[:200]} ({Path(last.filename).name}:{last.lineno})"
            failures.setdefault(f"{type(wrong).__name__} {last.filename} {last.lineno}", f"{text} {content[:200]!r}")
        slowest = max(slowest, time.monotonic() - began)
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    if megabytes > MAX_MEGABYTES:
        failures["memory"] = f"{megabytes} MB"
    return {"tries": tries, "outcomes": dict(outcomes), "failures": list(failures.values()),
            "slowest_seconds": round(slowest, 2), "megabytes": megabytes}  # fmt: skip


def _once(reader: Reader, content: bytes, place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place) as empty:
        reader(Path(empty), content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="for each reader")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="readers whose name contains this")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)  # forks
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary, ThreadPoolExecutor(options.jobs) as pool:
        place = Path(temporary)
        chosen = [(name, given) for name, given in readers(place).items() if options.only in name]
        jobs = [(n, *pair) for n, pair in enumerate(chosen)]
        rows = list(
            pool.map(lambda job: fuzz(job[1], job[2], options.seconds, options.seed, place / f"fuzz-{job[0]}"), jobs)
        )
    failed = [failure for row in rows for failure in row["failures"]]
    print(f"{sum(row['tries'] for row in rows)} tries of {len(rows)} readers, {len(failed)} failures")
    for failure in failed:
        print(failure)
    record(options.out, {"seconds_each": options.seconds, "failures": len(failed), "rows": rows})
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
