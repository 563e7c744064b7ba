from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gswgan.privacy import Contribution, DrawnOne, Gaussian, GaussianMechanism, Ledger, Repeated, Sampled
from gswgan.privacy.errors import LedgerError
from gswgan.privacy.events import tally, to_json
from gswgan.privacy.ledger import Entry, chained_line, read_ledger
from privacy.conftest import MakeMechanism

EVENT = Gaussian(noise_std=1.0, sensitivity=2.0)
ROW = Contribution(clip_norm=1.0)


def open_ledger(folder: Path, *, observer: str = "public", context: str = "plan", journal: bool = True) -> Ledger:
    return Ledger(
        folder / f"{observer}.jsonl",
        observer=observer,
        context=context,
        journal=folder / f"{observer}.journal" if journal else None,
    )


def filled(folder: Path, lines: int = 4) -> Path:
    ledger = open_ledger(folder)
    for step in range(lines):
        ledger.record(f"step {step}", Sampled(rate=0.1, event=EVENT), f"sum {step}")
    return ledger.path


def release(mechanism: GaussianMechanism, name: str, value: float) -> bytes:
    rows = torch.full((1, 1, 50), value, dtype=torch.float64)
    return mechanism.answer(name, [(rows, None)], slots=1, width=50).sums.tobytes()


# --- the chain


def test_a_line_names_release_attempt_and_event(tmp_path: Path) -> None:
    path = filled(tmp_path, 2)
    header, first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (header["observer"], header["context"], header["format_version"]) == ("public", "plan", 1)
    assert (first["name"], first["attempt"], first["previous"]) == ("step 0", 0, header["digest"])
    assert first["event"] == to_json(Sampled(rate=0.1, event=EVENT))
    assert second["previous"] == first["digest"]
    assert "sum" not in path.read_text().replace("sampled", "")  # no fingerprint in the public file


def test_total_and_file_agree(tmp_path: Path) -> None:
    path = filled(tmp_path, 7)
    again = open_ledger(tmp_path)
    assert tally(again.total()) == {Sampled(rate=0.1, event=EVENT): 7}
    assert read_ledger(path)[1] == again.entries


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = filled(tmp_path_factory.mktemp("chain"))
    return path, path.read_bytes()


def is_detected(path: Path, content: bytes) -> bool:
    copy = path.with_name("copy.jsonl")
    copy.write_bytes(content)
    try:
        read_ledger(copy)
    except LedgerError:
        return True
    return False


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_found_or_changes_nothing(intact: tuple[Path, bytes], data: st.DataObject) -> None:
    """Found, unless the bytes are another spelling of the same content (white space, 1e-05 and 1E-05)."""
    path, content = intact
    place = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[place] ^= data.draw(st.integers(1, 255))
    if not is_detected(path, bytes(changed)):
        assert read_ledger(path.with_name("copy.jsonl")) == read_ledger(path)


def test_every_changed_letter_or_digit_is_found(intact: tuple[Path, bytes]) -> None:
    path, content = intact
    assert not is_detected(path, content)
    for place, value in enumerate(content):
        if chr(value).isalnum() and chr(value) not in "eE":
            changed = bytearray(content)
            changed[place] = ord("7") if value != ord("7") else ord("8")
            assert is_detected(path, bytes(changed)), place


def test_a_removed_repeated_or_reordered_line_is_found(intact: tuple[Path, bytes]) -> None:
    path, content = intact
    lines = content.splitlines(keepends=True)
    for i in range(len(lines) - 1):
        assert is_detected(path, b"".join(lines[:i] + lines[i + 1 :]))
        assert is_detected(path, b"".join([*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]))
    for i in range(len(lines)):
        assert is_detected(path, b"".join([*lines[: i + 1], *lines[i:]]))
    assert is_detected(path, b"")


def test_a_line_of_another_ledger_is_found(tmp_path: Path) -> None:
    """The right place and a digest that fits its line, but another past."""
    paths = []
    for first in ("step 0", "another step"):
        (tmp_path / first).mkdir()
        ledger = open_ledger(tmp_path / first)
        for name in (first, "step 1"):
            ledger.record(name, EVENT, "sum")
        paths.append(ledger.path)
    one, other = (path.read_bytes().splitlines(keepends=True) for path in paths)
    assert is_detected(paths[0], b"".join([*one[:2], other[2]]))
    assert not is_detected(paths[0], b"".join([*one[:1], *other[1:]]))  # the whole of the other one is a ledger


def test_a_line_for_several_releases_is_no_line(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger._append({"index": 1, "name": "a", "attempt": 0, "event": {"kind": "composed", "events": []}})
    with pytest.raises(LedgerError):
        read_ledger(ledger.path)


def test_a_repeated_event_is_not_read_as_a_single_one(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger._append({"index": 1, "name": "a", "attempt": 0, "event": to_json(Repeated(event=EVENT, times=5))})
    with pytest.raises(LedgerError):
        read_ledger(ledger.path)


def test_a_ledger_cut_at_its_end_is_found_by_the_journal(tmp_path: Path) -> None:
    """The chain cannot see a cut; the journal, written before each line, can, and has the last line to restore it."""
    path = filled(tmp_path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    cuts = (b"".join(lines[:-1]), whole[:-1], b"".join(lines[:-2]), b"".join(lines[:2]), lines[0], b"")
    for cut in cuts:
        path.write_bytes(cut)
        assert len(open_ledger(tmp_path).entries) == 4
        assert path.read_bytes() == whole
    path.unlink()
    assert len(open_ledger(tmp_path).entries) == 4
    assert path.read_bytes() == whole


def test_a_journal_without_its_first_attempts_does_not_fit_a_cut_ledger(tmp_path: Path) -> None:
    ledger, journal = open_ledger(tmp_path), tmp_path / "public.journal"
    for sum_ in ("one", "another"):
        ledger.record("a", EVENT, sum_)
    journal.write_text(journal.read_text().splitlines(keepends=True)[1])
    ledger.path.write_text(ledger.path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(LedgerError, match="attempt 0"):
        open_ledger(tmp_path)


def test_two_processes_with_one_journal_and_a_ledger_each_never_announce_the_same_attempt(tmp_path: Path) -> None:
    """As two copies of a run folder do: the slower one is refused before its release, and knows of it afterwards."""
    journal = tmp_path / "journal"

    def copy(name: str) -> Ledger:
        return Ledger(tmp_path / name, observer="public", context="plan", journal=journal)

    one, other = copy("one"), copy("other")
    assert one.record("a", EVENT, "sum") == 0
    with pytest.raises(LedgerError, match="One run at a time"):
        other.record("a", EVENT, "another sum")
    assert other.entries == []
    again = copy("other")
    assert [(entry.name, entry.attempt) for entry in again.entries] == [("a", 0)]
    assert [again.record("a", EVENT, sum_) for sum_ in ("sum", "another sum")] == [0, 1]


# --- crashes


@pytest.mark.parametrize("missing", [1, 5, 60])
def test_a_torn_last_line_is_dropped_and_the_ledger_goes_on(tmp_path: Path, missing: int) -> None:
    path = filled(tmp_path, 3)
    whole = path.read_bytes()
    ledger = open_ledger(tmp_path)
    ledger.record("torn", EVENT, "sum")
    path.write_bytes(path.read_bytes()[:-missing])
    (tmp_path / "public.journal").write_text(
        "".join((tmp_path / "public.journal").read_text().splitlines(keepends=True)[:-1])
    )  # it is written after the line, so it was not written
    again = open_ledger(tmp_path)
    assert path.read_bytes() == whole
    assert [entry.name for entry in again.entries] == ["step 0", "step 1", "step 2"]
    assert again.record("torn", EVENT, "sum") == 0
    assert read_ledger(path)[1] == again.entries


def test_a_torn_header_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "public.jsonl").write_text('{"observer": "pub')
    assert open_ledger(tmp_path).entries == []
    assert read_ledger(tmp_path / "public.jsonl")[0]["observer"] == "public"


def test_a_torn_journal_line_is_counted_again(tmp_path: Path, make_mechanism: MakeMechanism) -> None:
    mechanism = make_mechanism(ROW, EVENT)
    one = release(mechanism, "a", 0.1)
    journal = tmp_path / "run" / "public.journal"
    journal.write_text(journal.read_text()[:-3])
    again = make_mechanism(ROW, EVENT)
    assert release(again, "a", 0.1) == one  # the same sum has the same noise, counted or not
    assert [(e.name, e.attempt) for e in again.ledger.entries] == [("a", 0), ("a", 1)]


@pytest.mark.parametrize("content", ["{}\n", "no json\n", "[]\n", "3\n"])
def test_a_damaged_journal_is_refused(tmp_path: Path, content: str) -> None:
    filled(tmp_path)
    (tmp_path / "public.journal").write_text(content)
    with pytest.raises(LedgerError):
        open_ledger(tmp_path)


def test_a_reopened_ledger_continues_the_chain(tmp_path: Path) -> None:
    path = filled(tmp_path, 2)
    open_ledger(tmp_path).record("later", EVENT, "sum")
    header, entries, _ = read_ledger(path)
    assert [entry.name for entry in entries] == ["step 0", "step 1", "later"]
    assert header["context"] == "plan"


def test_a_second_process_on_the_same_ledger_is_refused(tmp_path: Path) -> None:
    one, two = open_ledger(tmp_path), open_ledger(tmp_path)
    one.record("a", EVENT, "sum of one")
    with pytest.raises(LedgerError):
        two.record("a", EVENT, "sum of two")
    one.record("b", EVENT, "sum")
    assert [entry.name for entry in read_ledger(one.path)[1]] == ["a", "b"]


# --- whose ledger


def test_the_ledger_of_another_plan_or_observer_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path)
    for observer, context in (("public", "other plan"), ("server", "plan")):
        with pytest.raises(LedgerError):
            Ledger(path, observer=observer, context=context)


def test_each_observer_has_a_ledger_of_their_own(tmp_path: Path) -> None:
    public, server = open_ledger(tmp_path), open_ledger(tmp_path, observer="server")
    for step in range(5):
        server.record(f"inner {step}", EVENT, "sum")
    public.record("outer", EVENT, "sum")
    assert tally(server.total()) == {EVENT: 5}
    assert tally(public.total()) == {EVENT: 1}


# --- replays


def test_the_same_sum_is_the_same_release_again(make_mechanism: MakeMechanism) -> None:
    first = release(make_mechanism(ROW, EVENT), "a", 0.1)
    again = make_mechanism(ROW, EVENT)
    assert release(again, "a", 0.1) == first
    assert release(again, "a", 0.1) == first
    assert len(again.ledger.entries) == 1


def test_another_sum_is_another_release_with_other_noise(make_mechanism: MakeMechanism) -> None:
    one = np.frombuffer(release(make_mechanism(ROW, EVENT), "a", 0.1))
    again = make_mechanism(ROW, EVENT)
    two = np.frombuffer(release(again, "a", 0.1 + 1e-7))
    assert np.abs(one - two).min() > 1e-6  # with the same noise the difference would be 1e-7 everywhere
    assert [(e.name, e.attempt) for e in again.ledger.entries] == [("a", 0), ("a", 1)]
    assert release(make_mechanism(ROW, EVENT), "a", 0.1) == one.tobytes()  # either may come again, for free
    assert release(make_mechanism(ROW, EVENT), "a", 0.1 + 1e-7) == two.tobytes()
    assert len(make_mechanism(ROW, EVENT).ledger.entries) == 2


def test_without_a_journal_every_repetition_is_counted(tmp_path: Path) -> None:
    for attempt in range(3):
        assert open_ledger(tmp_path, journal=False).record("a", EVENT, "sum") == attempt
    assert len(open_ledger(tmp_path, journal=False).entries) == 3


def test_a_lost_journal_is_counted_again(tmp_path: Path, make_mechanism: MakeMechanism) -> None:
    first = release(make_mechanism(ROW, EVENT), "a", 0.1)
    (tmp_path / "run" / "public.journal").unlink()
    again = make_mechanism(ROW, EVENT)
    assert release(again, "a", 0.1) == first
    assert len(again.ledger.entries) == 2


@pytest.mark.parametrize("releases_before", [0, 1, 3])
def test_copies_give_the_same_sum_the_same_bytes_and_two_sums_independent_noise(
    tmp_path: Path, make_mechanism: MakeMechanism, releases_before: int
) -> None:
    """Two copies of a run, restored from a backup, on machines whose arithmetic differs in the last bits."""
    mechanism = make_mechanism(ROW, EVENT)
    for number in range(releases_before):
        release(mechanism, "a", 0.01 * number)
    for copy in ("one", "two", "three"):
        shutil.copytree(tmp_path / "run", tmp_path / copy)
    one, two, three = (make_mechanism(ROW, EVENT, folder=copy) for copy in ("one", "two", "three"))
    first, second = (np.frombuffer(release(copy, "a", value)) for copy, value in ((one, 0.1), (two, 0.1 + 1e-7)))
    assert np.abs(first - second).min() > 1e-6  # with the same noise the difference would be 1e-7 everywhere
    assert abs(np.corrcoef(first - 0.1, second - 0.1)[0, 1]) < 0.7
    assert release(three, "a", 0.5) != release(three, "a", 0.1) == first.tobytes()  # whatever came before it


@pytest.mark.parametrize(
    ("contribution", "event"),
    [
        (ROW, Gaussian(noise_std=2.0, sensitivity=2.0)),
        (Contribution(clip_norm=0.5), Gaussian(noise_std=1.0, sensitivity=2.0)),
        (Contribution(clip_norm=0.5), Gaussian(noise_std=0.5, sensitivity=1.0)),
    ],
)
def test_the_same_sum_by_another_mechanism_is_another_release(
    make_mechanism: MakeMechanism, contribution: Contribution, event: Gaussian
) -> None:
    """One name, one sum on the grid, two noise scales with one draw would give the sum away exactly."""
    one = np.frombuffer(release(make_mechanism(ROW, EVENT), "a", 9.0))
    other = make_mechanism(contribution, event)
    two = np.frombuffer(release(other, "a", 9.0))
    assert len(other.ledger.entries) == 2
    shift = 50**-0.5  # what a clipped row has in each of 50 coordinates, in clip norms
    one_noise, two_noise = one - shift, two - shift * contribution.clip_norm
    assert abs(np.corrcoef(one_noise, two_noise)[0, 1]) < 0.7


def test_a_second_attempt_is_recorded_without_amplification(tmp_path: Path) -> None:
    """Participation belongs to the step, so a step that is released twice has one coin for both releases."""
    ledger = open_ledger(tmp_path)
    sampled, drawn = Sampled(rate=0.1, event=EVENT), DrawnOne(count=10, event=EVENT)
    for event in (sampled, drawn):
        name = type(event).__name__
        ledger.record(name, event, "one sum")
        ledger.record(name, event, "another sum")
        ledger.record(name, event, "one sum")
    assert [entry.event for entry in ledger.entries] == [sampled, EVENT, drawn, EVENT]
    assert read_ledger(ledger.path)[1] == ledger.entries


# --- properties: any sequence, any cut, any turned bit

names = st.sampled_from(["step 0", "step 1", "embedding"])
sums = st.integers(0, 2)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
Draws = dict[tuple[str, int], int]


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


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=120), st.sampled_from(["public.jsonl", "public.journal"]), st.booleans())
def test_any_bytes_are_a_ledger_or_a_ledger_error(quick_disk: None, content: bytes, name: str, ended: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(content + (b"\n" if ended else b""))
        with contextlib.suppress(LedgerError):
            assert open_ledger(Path(folder)).entries == []
        with contextlib.suppress(LedgerError):
            read_ledger(Path(folder) / "public.jsonl")


@settings(max_examples=150, deadline=None)
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
