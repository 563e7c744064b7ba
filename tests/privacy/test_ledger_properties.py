"""Any sequence of answers, any cut and any changed byte: a ledger is refused, or it counts no answer too few."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gswgan.privacy import DrawnOne, Gaussian, Sampled
from gswgan.privacy.errors import LedgerError
from gswgan.privacy.ledger import Entry, chained_line, read_ledger
from privacy.ledgers import EVENT, filled, open_ledger

names = st.sampled_from(["step 0", "step 1", "embedding"])
sums = st.integers(0, 2)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
Draws = dict[tuple[str, int], int]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = filled(tmp_path_factory.mktemp("chain"))
    return path, path.read_bytes()


def played(folder: Path, steps: list[tuple[str, int]], reopen: list[bool]) -> tuple[list[Entry], Draws]:
    """Record the sums one after the other, opening the ledger anew where told; the lines, and the draw of each sum."""
    ledger, draws = open_ledger(folder), {}
    for (name, value), again in zip(steps, reopen):
        ledger = open_ledger(folder) if again else ledger
        attempt = ledger.record(name, Sampled(rate=0.1, event=EVENT), f"{name}: {value}")
        assert draws.setdefault((name, value), attempt) == attempt  # the same sum is the same release
    return ledger.entries, draws


def never_fewer(folder: Path, entries: list[Entry], draws: Draws) -> None:
    """The ledger is refused, or it has every line, and no draw of noise is ever given to a second sum."""
    try:
        ledger = open_ledger(folder)
        assert not Counter(entries) - Counter(ledger.entries)
        owner = {(name, attempt): value for (name, value), attempt in draws.items()}
        for name, value in [*draws, ("step 0", 9), ("later", 0)]:
            attempt = ledger.record(name, Sampled(rate=0.1, event=EVENT), f"{name}: {value}")
            assert owner.setdefault((name, attempt), value) == value
        assert set(owner) <= {(entry.name, entry.attempt) for entry in ledger.entries}
    except LedgerError:
        return


@pytest.fixture(scope="module")
def quick_disk() -> Iterator[None]:
    """These tests are about contents: nobody pulls the plug."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(names, sums), max_size=9), st.lists(st.booleans(), min_size=9, max_size=9))
def test_any_sequence_is_counted_once_for_each_sum(
    quick_disk: None, steps: list[tuple[str, int]], reopen: list[bool]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        entries, draws = played(Path(folder), steps, reopen)
        assert len(entries) == len(set(steps)) == len(draws)
        assert {(entry.name, entry.attempt) for entry in entries} == {(name, a) for (name, _), a in draws.items()}
        assert read_ledger(Path(folder) / "public.jsonl")[1] == entries == open_ledger(Path(folder)).entries
        for entry in entries:  # only a first attempt is amplified
            assert (entry.attempt == 0) == isinstance(entry.event, Sampled)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(names, sums), min_size=1, max_size=5),
    st.sampled_from(["public.jsonl", "public.journal"]),
    st.sampled_from(["cut", "turned", "line out", "line twice"]),
    st.data(),
)
def test_a_damaged_ledger_or_journal_never_counts_less(
    quick_disk: None, steps: list[tuple[str, int]], name: str, damage: str, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        entries, draws = played(Path(folder), steps, [False] * len(steps))
        path = Path(folder) / name
        content = bytearray(path.read_bytes())
        if damage == "cut":
            del content[data.draw(st.integers(0, len(content))) :]
        elif damage == "turned":
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        else:
            lines = bytes(content).splitlines(keepends=True)
            place = data.draw(st.integers(0, len(lines) - 1))
            lines[place : place + 1] = [] if damage == "line out" else [lines[place]] * 2
            content = bytearray(b"".join(lines))
        path.write_bytes(content)
        never_fewer(Path(folder), entries, draws)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=120), st.sampled_from(["public.jsonl", "public.journal"]), st.booleans())
def test_any_bytes_are_a_ledger_or_a_ledger_error(quick_disk: None, content: bytes, name: str, ended: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(content + (b"\n" if ended else b""))
        with contextlib.suppress(LedgerError):
            assert open_ledger(Path(folder)).entries == []
        with contextlib.suppress(LedgerError):
            read_ledger(Path(folder) / "public.jsonl")


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2), st.sampled_from(["value", "event", "gone", "row"]), json_values, st.data())
def test_a_chain_over_any_content_is_a_ledger_or_a_ledger_error(
    intact: tuple[Path, bytes], place: int, change: str, value: object, data: st.DataObject
) -> None:
    """Whoever can hash can make a chain: what stands in it must be sound by itself."""
    rows = [json.loads(line) for line in intact[1].splitlines()[:3]]
    row = rows[place]
    table = row["event"] if change == "event" and place else row
    key = data.draw(st.sampled_from(sorted(set(table) - {"previous", "digest"})))
    if change == "gone":
        del table[key]
    else:
        table[key] = value
    path, previous = intact[0].with_name("chained.jsonl"), ""
    with path.open("w") as file:
        for content in rows:
            body = {k: v for k, v in content.items() if k not in ("previous", "digest")}
            text, previous = chained_line(body, previous)
            file.write(text if change != "row" or content is not row else json.dumps(value) + "\n")
    try:
        entries = read_ledger(path)[1]
    except LedgerError:
        return
    for entry in entries:
        assert isinstance(entry.event, Gaussian | Sampled | DrawnOne)
