"""More data than memory: millions of made 28x28 images streamed from Parquet by two workers.

    python benchmarks/stream.py --out benchmarks/results/stream-cpu.json

Memory is sampled over the pass, a worker is killed at a third of it, and at two thirds it is stopped and resumed. The
50,000 distinct images of one file are in every file, each time in another order, so what the sums over all records
must be is known from memory. Then the same on Ray, on a part, and the rate with as many features as a run has.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from gswgan.critics.kernel.embedding import record_blocks
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.critics.kernel.streaming import OnePass
from gswgan.critics.resumable import Stopped
from gswgan.data import ImageStream, load_data, open_stream
from gswgan.privacy import Contribution
from gswgan.privacy.mechanism import clipped_sum
from gswgan.run.checkpoint import Checkpoint
from record import record

DISTINCT, GROUP, CLASSES = 50_000, 1_000, 10
CONTRIBUTION, CPU = Contribution(clip_norm=1.0, counts=True), torch.device("cpu")
TICKS = os.sysconf("SC_CLK_TCK")


def made(index: int, rng: np.random.Generator) -> bytes:
    """A bright blob on black, of a place and size by its class, as a PNG."""
    y, x = np.mgrid[:28, :28]
    angle = 2 * np.pi * (index % CLASSES) / CLASSES
    centre = 14 + 6 * np.array([np.sin(angle), np.cos(angle)]) + rng.normal(0, 1.5, 2)
    blob = np.exp(-((y - centre[0]) ** 2 + (x - centre[1]) ** 2) / (2 * rng.uniform(1.5, 4) ** 2))
    content = io.BytesIO()
    Image.fromarray(np.where(blob > 0.1, 255 * blob, 0).astype(np.uint8)).save(content, "PNG")
    return content.getvalue()


def write(folder: Path, records: int) -> int:
    """Files of all distinct images, shuffled; returns the bytes on the disk."""
    rng = np.random.default_rng(0)
    structs = pa.array(
        [{"bytes": made(index, rng), "path": None} for index in range(DISTINCT)],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    labels = pa.array(np.arange(DISTINCT) % CLASSES)
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": [*"0123456789"]}}
    told = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"image": structs, "label": labels}).replace_schema_metadata(told)
    files = records // DISTINCT
    for number in range(files):
        order = pa.array(rng.permutation(DISTINCT))
        path = folder / f"train-{number:05}-of-{files:05}.parquet"
        pq.write_table(table.take(order), path, row_group_size=GROUP, use_dictionary=False)
    return sum(path.stat().st_size for path in folder.iterdir())


def processes() -> dict[int, tuple[int, str]]:
    """Parent and command of everything below this process."""
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found[int(entry.name)] = (parent, (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except (OSError, ValueError):
                continue
    below, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, (parent, _) in found.items() if parent in below} - below
        below, grown = below | more, bool(more)
    return {pid: found[pid] for pid in below if pid in found}


def workers() -> list[int]:
    """The processes that sum: children of the fork server, or Ray's."""
    every = processes()
    servers = {pid for pid, (_, command) in every.items() if "forkserver" in command}
    return [
        pid for pid, (parent, command) in every.items()
        if (parent in servers and "forkserver" in command) or command.startswith("ray::sum_part")
    ]  # fmt: skip


def memory(pid: int) -> float:
    """Resident, in MB."""
    try:
        return int((Path("/proc") / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


class Watch:
    """Samples memory and processor time while records go by; kills a worker when asked to."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.peak: dict[str, float] = {"main": 0.0, "worker": 0.0}
        self.kill_at, self.killed = kill_at, 0
        self._cpu: dict[int, float] = {}
        self._done, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Watch:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._began
        self._over.set()
        self._thread.join()

    @property
    def core_seconds(self) -> float:
        return sum(self._cpu.values())

    def move(self, done: int, total: int) -> None:
        self._done = done
        if self.kill_at is not None and done >= self.kill_at and (found := workers()):
            os.kill(found[0], signal.SIGKILL)
            self.kill_at, self.killed = None, self.killed + 1
        if not self.rows or done - self.rows[-1]["records"] >= total / 20 or done == total:
            seconds = round(time.monotonic() - self._began, 1)
            self.rows.append({"records": done, "seconds": seconds, "main_mb": round(memory(os.getpid()), 1)})
            self.rows[-1]["worker_mb"] = [round(memory(pid), 1) for pid in workers()]
            print(self.rows[-1], os.getloadavg()[0], flush=True)

    def _sample(self) -> None:
        while not self._over.wait(1.0):
            self.peak["main"] = max(self.peak["main"], memory(os.getpid()))
            for pid in workers():
                self.peak["worker"] = max(self.peak["worker"], memory(pid))
                try:
                    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
                    self._cpu[pid] = (int(fields[11]) + int(fields[12])) / TICKS
                except OSError:
                    continue

    def told(self, records: int) -> dict[str, Any]:
        return {
            "records": records,
            "seconds": round(self.seconds, 1),
            "records_per_second": round(records / self.seconds),
            "worker_core_seconds": round(self.core_seconds, 1),
            "records_per_core_second": round(records / max(1e-9, self.core_seconds)),
            "workers_killed": self.killed,
            "peak_mb": {name: round(value, 1) for name, value in self.peak.items()},
            "load_average": [round(value, 1) for value in os.getloadavg()],
        }


def one_pass(
    found: ImageStream, place: Path, settings: KernelSettings, watch: Watch, workers: int | str, stop_at: int = 0
) -> np.ndarray:
    """The sums, with a stop and a resume after `stop_at` records."""
    progress = [0]

    def move(done: int, total: int) -> None:
        progress[0] = done
        watch.move(done, total)

    def stopped() -> bool:
        return 0 < stop_at <= progress[0]

    store = Checkpoint(place, "benchmark")
    if stop_at:
        try:
            OnePass(stream=found, workers=workers, store=store, progress=move, stopped=stopped).total(
                settings, CONTRIBUTION, CPU
            )
        except Stopped:
            print("stopped; resuming", flush=True)
    total, _ = OnePass(stream=found, workers=workers, store=store, progress=move).total(settings, CONTRIBUTION, CPU)
    return total.total


def apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm((one - other).astype(np.float64)) / np.linalg.norm(other.astype(np.float64)))


def in_memory(folder: Path, settings: KernelSettings) -> np.ndarray:
    data = load_data(folder)
    features = RandomFeatures(settings, 1, 28, CPU)
    return clipped_sum(record_blocks(data, features), CONTRIBUTION, slots=CLASSES, width=features.width).total


def part(folder: Path, name: str, files: int) -> Path:
    """The first files again, in a folder of their own."""
    place = folder.parent / name
    place.mkdir()
    for path in sorted(folder.iterdir())[:files]:
        os.link(path, place / path.name)
    return place


def measure(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    settings = KernelSettings(features=options.features, length_scales=(4.0,))
    began = time.monotonic()
    size = write(folder, options.records)
    yield "data", {
        "distinct": DISTINCT, "row_group": GROUP, "files": options.records // DISTINCT, "bytes": size,
        "seconds_to_write": round(time.monotonic() - began, 1),
    }  # fmt: skip
    once = part(folder, "once", 1)
    expected = in_memory(once, settings)
    found = open_stream(folder)
    assert found is not None
    with Watch(kill_at=options.records // 3) as watch:
        total = one_pass(found, folder.parent / "sums", settings, watch, 2, stop_at=2 * options.records // 3)
    copies = options.records // DISTINCT
    counts = total[:, -1] >> 26
    yield (
        "stream",
        watch.told(options.records)
        | {
            "features": options.features,
            "stopped_and_resumed": 1,
            "counts_exact": bool((counts == copies * (expected[:, -1] >> 26)).all()),
            "relative_difference_to_memory": apart(total, copies * expected),
            "over_time": watch.rows,
        },
    )
    few = part(folder, "few", options.part // DISTINCT)
    stream = open_stream(few)
    assert stream is not None
    reference = in_memory(few, settings)
    with Watch() as watch:
        sums = one_pass(stream, folder.parent / "few-sums", settings, watch, 2)
    yield "part", {"records": options.part, "relative_difference_to_memory": apart(sums, reference)}
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    with Watch(kill_at=options.part // 3) as watch:
        by_ray = one_pass(stream, folder.parent / "ray-sums", settings, watch, "ray")
    ray.shutdown()
    yield "ray", watch.told(options.part) | {
        "relative_difference_to_processes": apart(by_ray, sums), "same_to_the_last_bit": bool((by_ray == sums).all()),
    }  # fmt: skip
    full = KernelSettings(features=32768, length_scales=(4.0, 2.0), windows=(0.0, 4.0))
    one = open_stream(once)
    assert one is not None
    with Watch() as watch:
        one_pass(one, folder.parent / "full-sums", full, watch, 2)
    yield "default_features", {"features": full.features} | watch.told(DISTINCT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--part", type=int, default=250_000, help="records for memory and for Ray")
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "stream"}
    with tempfile.TemporaryDirectory(prefix="gswgan-stream-") as place:
        (folder := Path(place) / "made").mkdir()
        for name, found in measure(folder, options):
            result[name] = found
            print(name, {key: value for key, value in found.items() if key != "over_time"}, flush=True)
            record(options.out, result)


if __name__ == "__main__":
    main()
