from __future__ import annotations

import dataclasses
import gc
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures.process import _ExecutorManagerThread
from pathlib import Path

import numpy as np
import pytest
import torch
from deadly_reader import Deadly

from conftest import tiny_images
from gswgan.cli.training import check_workers
from gswgan.critics.kernel import streaming
from gswgan.critics.kernel.embedding import record_blocks
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.critics.kernel.streaming import Job, OnePass, Partial, sum_part, summed_parts
from gswgan.critics.resumable import Stopped
from gswgan.data import ImageData, ImageStream, open_stream, stream
from gswgan.data import files as data_files
from gswgan.data.files import Part
from gswgan.errors import DataError, PlanError, RunError
from gswgan.privacy import Contribution
from gswgan.privacy.mechanism import clip_to_grid, clipped_sum
from gswgan.run.checkpoint import Checkpoint
from many_files import write_npz, write_parquet

CPU = torch.device("cpu")
SETTINGS = KernelSettings(features=64, length_scales=(1.5,))
COUNTED, PLAIN = Contribution(clip_norm=1.0, counts=True), Contribution(clip_norm=1.0)


def in_memory(data: ImageData, contribution: Contribution = COUNTED) -> np.ndarray:
    features = RandomFeatures(SETTINGS, data.channels, data.image_size, CPU)
    return clipped_sum(record_blocks(data, features), contribution, slots=data.classes, width=64).total


def passing(found: ImageStream, place: Path, **options: object) -> OnePass:
    options.setdefault("workers", 1)
    place.mkdir(exist_ok=True)
    return OnePass(stream=found, store=Checkpoint(place / "sums", "plan"), **options)


def streamed(found: ImageStream, place: Path, contribution: Contribution = COUNTED, **options: object) -> np.ndarray:
    total, records = passing(found, place, **options).total(SETTINGS, contribution, CPU)
    assert records == found.public_records
    return total.total


def close(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm((one - other).astype(np.float64)) / np.linalg.norm(other.astype(np.float64)))


def test_the_same_sums_as_in_memory(tmp_path: Path, stripes: ImageData, monkeypatch) -> None:
    expected = in_memory(stripes)
    assert expected[:, -1].sum() == 96 << 26
    for size, batch in ((4096, 256), (15, 256), (40, 7)):  # however it is cut
        monkeypatch.setattr(data_files, "RECORDS_PER_PART", size)
        monkeypatch.setattr(data_files, "RECORDS_PER_BATCH", batch)
        place = tmp_path / f"{size}-{batch}"
        total = streamed(open_stream(write_npz(place / "npz", stripes), classes=3), place)
        assert close(total, expected) < 1e-6
        assert np.array_equal(total[:, -1], expected[:, -1])
    no_labels = dataclasses.replace(stripes, labels=None, classes=1, class_names=("all",))
    found = open_stream(place / "npz", labels=False)
    assert close(streamed(found, tmp_path, PLAIN), in_memory(no_labels, PLAIN)) < 1e-6


def test_with_float64_features_to_nine_digits(tmp_path: Path, stripes: ImageData, monkeypatch) -> None:
    """What single precision leaves open is rounding of the products alone, not the sums."""
    real = RandomFeatures.__init__

    def exact(self: RandomFeatures, *arguments: object) -> None:
        real(self, *arguments)
        self.frequencies = self.frequencies.double()

    monkeypatch.setattr(RandomFeatures, "__init__", exact)
    monkeypatch.setattr(data_files, "RECORDS_PER_BATCH", 7)
    streaming._features.cache_clear()
    folder = write_npz(tmp_path / "npz", stripes)
    assert close(streamed(open_stream(folder, classes=3), tmp_path), in_memory(stripes)) < 1e-9
    streaming._features.cache_clear()


def test_a_record_that_cannot_be_decoded_changes_nothing_else(tmp_path: Path, stripes: ImageData, monkeypatch) -> None:
    """Exactly: the sums of neighbours differ by the row of that record, and by nothing in the rows of all others."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(stream, "HEAD", 10)
    found = open_stream(write_parquet(tmp_path / "whole", stripes))
    whole = streamed(found, tmp_path / "a")
    counted: list[int] = []
    damaged = open_stream(write_parquet(tmp_path / "damaged", stripes, damaged=(50,)))
    assert damaged.public_records == stripes.n  # nor does it change what is public
    total = streamed(damaged, tmp_path / "b", keep=counted.append)
    assert counted == [1]
    (piece,) = found.reader.read(found.files.parts[1])  # records 32 to 63
    features = RandomFeatures(SETTINGS, 1, 8, CPU)
    ((rows, slots),) = record_blocks(piece, features)
    mine = clip_to_grid(rows, 1.0)[50 - 32, 0].numpy()
    expected = np.zeros_like(whole)
    expected[slots[50 - 32]] = np.append(mine, 1 << 26)
    assert np.array_equal(whole - total, expected)


def test_a_stop_saves_and_the_rest_is_done_later(tmp_path: Path, monkeypatch) -> None:
    data = tiny_images(120)
    found = open_stream(write_npz(tmp_path / "npz", data, files=6), classes=3)
    expected = streamed(found, tmp_path / "straight")
    seen: list[str] = []
    real = streaming.sum_part

    def counting(job: Job, part: Part) -> Partial:
        seen.append(part.path.name)
        return real(job, part)

    monkeypatch.setattr(streaming, "sum_part", counting)
    told: list[tuple[int, int]] = []
    for until in (2, 3):
        with pytest.raises(Stopped):
            streamed(
                found, tmp_path, stopped=lambda until=until: len(seen) == until,
                progress=lambda *moved: told.append(moved),
            )  # fmt: skip
    assert told == [(0, 120), (20, 120), (40, 120), (40, 120), (60, 120)]
    assert np.array_equal(streamed(found, tmp_path), expected)
    assert seen == [f"part-{index:03}.npz" for index in range(6)]  # each of them once
    again = streamed(found, tmp_path)  # all sums are there: a release that was interrupted needs no second pass
    assert np.array_equal(again, expected)
    assert len(seen) == 6


def test_a_crash_loses_what_was_not_saved_and_nothing_else(tmp_path: Path, monkeypatch) -> None:
    data = tiny_images(120)
    found = open_stream(write_npz(tmp_path / "npz", data, files=6), classes=3)
    expected = streamed(found, tmp_path / "straight")
    real, calls = streaming.sum_part, []

    def failing(job: Job, part: Part) -> Partial:
        calls.append(part)
        if len(calls) == 4:
            raise MemoryError
        return real(job, part)

    saved = iter([False, True, False, False, False, False, False])
    monkeypatch.setattr(Checkpoint, "is_due", lambda self: next(saved))
    monkeypatch.setattr(streaming, "sum_part", failing)
    with pytest.raises(MemoryError):
        streamed(found, tmp_path)
    assert np.array_equal(streamed(found, tmp_path), expected)
    assert len(calls) == 4 + 4  # the third was done, not saved, and done again


def test_a_part_that_comes_twice_counts_once_and_a_missing_one_is_missed(
    tmp_path: Path, stripes: ImageData, monkeypatch
) -> None:
    found = open_stream(write_npz(tmp_path / "npz", stripes, files=4), classes=3)
    expected = streamed(found, tmp_path / "straight")

    def twice(job: Job, parts: Mapping[int, Part], workers: object) -> Iterator[tuple[int, Partial]]:
        for index in [2, 0, 2, 3, 1, 0]:
            yield index, sum_part(job, parts[index])

    monkeypatch.setattr(streaming, "summed_parts", twice)
    assert np.array_equal(streamed(found, tmp_path / "twice"), expected)
    monkeypatch.setattr(
        streaming, "summed_parts", lambda job, parts, workers: (pair for pair in twice(job, parts, 1) if pair[0] != 1)
    )
    with pytest.raises(RunError, match="all 4 parts"):
        streamed(found, tmp_path / "missing")


def test_files_that_change_meanwhile_stop_the_run(tmp_path: Path, stripes: ImageData) -> None:
    folder = write_npz(tmp_path / "npz", stripes)
    found = open_stream(folder, classes=3)
    np.savez(folder / "part-001.npz", images=np.zeros((5, 8, 8, 1), np.uint8), labels=np.zeros(5, np.int64))
    with pytest.raises(RunError, match=r"5 records in .*part-001"):
        streamed(found, tmp_path)


def test_sums_of_another_shape_are_not_taken_up(tmp_path: Path, stripes: ImageData) -> None:
    folder = write_npz(tmp_path / "npz", stripes)
    streamed(open_stream(folder, classes=3), tmp_path)
    with pytest.raises(RunError, match="sums"):
        streamed(open_stream(folder, classes=4), tmp_path)


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost_or_counted_twice(tmp_path: Path, monkeypatch) -> None:
    found = open_stream(write_npz(tmp_path / "npz", tiny_images(), files=6), classes=3)
    expected = streamed(found, tmp_path / "straight")
    (tmp_path / "marks").mkdir()
    deadly = Deadly(**vars(found.reader), marks=tmp_path / "marks", times=2)
    total = streamed(dataclasses.replace(found, reader=deadly), tmp_path, workers=2)
    assert len(list((tmp_path / "marks").iterdir())) == 2  # it did die
    assert np.array_equal(total, expected)
    monkeypatch.setattr(streaming, "MAX_DEATHS", 1)
    deadly = dataclasses.replace(deadly, times=100)
    with pytest.raises(RunError, match="died one after the other"):
        streamed(dataclasses.replace(found, reader=deadly), tmp_path / "hopeless", workers=2)


@pytest.mark.timeout(300)  # it would wait for ever
def test_a_worker_that_began_while_a_broken_pool_ended_the_others_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = open_stream(write_npz(tmp_path / "npz", tiny_images(), files=6), classes=3)
    (tmp_path / "marks").mkdir()
    deadly = Deadly(**vars(found.reader), marks=tmp_path / "marks", times=1)
    real, missed = _ExecutorManagerThread.terminate_broken, list[int]()

    def begun_meanwhile(self, *given):
        late = list(self.processes.values())[-1]

        def terminate():
            if missed:
                type(late).terminate(late)
            missed.append(late.pid)

        late.terminate = terminate
        real(self, *given)

    monkeypatch.setattr(_ExecutorManagerThread, "terminate_broken", begun_meanwhile)
    total = streamed(dataclasses.replace(found, reader=deadly), tmp_path, workers=2)
    assert len(missed) >= 2
    assert np.array_equal(total, streamed(found, tmp_path / "straight"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # Ray's own
def test_ray_gives_the_same_sums_and_replaces_a_dead_worker(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))  # they need this module
    found = open_stream(write_npz(tmp_path / "npz", tiny_images(), files=6), classes=3)
    expected = streamed(found, tmp_path / "straight")
    (tmp_path / "marks").mkdir()
    deadly = Deadly(**vars(found.reader), marks=tmp_path / "marks", times=1)
    total = streamed(dataclasses.replace(found, reader=deadly), tmp_path, workers="ray")
    assert len(list((tmp_path / "marks").iterdir())) == 1
    assert np.array_equal(total, expected)
    gc.collect()  # processes that Ray did not wait for


def test_never_more_than_two_parts_a_worker_are_on_their_way() -> None:
    """So memory does not grow with the number of parts."""
    alive, most = 0, 0

    class Pool:
        def submit(self, work: object, part: int) -> object:
            nonlocal alive, most
            from concurrent.futures import Future

            alive, most = alive + 1, max(most, alive + 1)
            future: Future[int] = Future()
            future.set_result(part)
            return future

    for index, part in streaming._from_pool(Pool(), {index: index for index in range(50)}, 4):
        alive -= 1
        assert index == part
    assert most == 4
    assert alive == 0


def test_an_error_of_a_worker_says_the_same_everywhere(tmp_path: Path, stripes: ImageData) -> None:
    error = pickle.loads(pickle.dumps(DataError("name", (1, 2), "three", "Do it.")))  # noqa: S301
    assert (type(error), str(error)) == (DataError, str(DataError("name", (1, 2), "three", "Do it.")))
    found = open_stream(write_npz(tmp_path / "npz", stripes), classes=3)
    job = Job(reader=found.reader, settings=SETTINGS, contribution=COUNTED, device="cpu")
    gone = dataclasses.replace(found.files.parts[0], path=tmp_path / "gone.npz")
    with pytest.raises(DataError, match="no such file"):
        list(summed_parts(job, {0: gone}, 1))


def test_workers() -> None:
    assert check_workers("3") == 3
    assert check_workers(None) >= 1
    for wrong in ("0", "-1", "two", "1025", ""):
        with pytest.raises(PlanError, match="or ray"):
            check_workers(wrong)
