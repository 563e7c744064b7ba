"""The hash chain of a ledger, and what a crash or a second process leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gswgan.privacy import Composed, Event, Ledger, Repeated, Sampled
from gswgan.privacy.errors import LedgerError
from gswgan.privacy.events import tally, to_json
from gswgan.privacy.ledger import read_ledger
from privacy.ledgers import EVENT, filled, open_ledger


def test_a_line_names_release_attempt_and_event(tmp_path: Path) -> None:
    path = filled(tmp_path, 2)
    header, first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (header["observer"], header["context"], header["format_version"]) == ("public", "plan", 1)
    assert (first["name"], first["attempt"], first["previous"]) == ("step 0", 0, header["digest"])
    assert first["event"] == to_json(Sampled(rate=0.1, event=EVENT))
    assert second["previous"] == first["digest"]
    assert "sum" not in path.read_text().replace("sampled", "")  # no fingerprint in the public file


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


@settings(max_examples=200, deadline=None)
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


@pytest.mark.parametrize("event", [Composed(events=()), Repeated(event=EVENT, times=5)])
def test_a_line_for_several_answers_is_no_line(tmp_path: Path, event: Event) -> None:
    ledger = open_ledger(tmp_path)
    ledger._append({"index": 1, "name": "a", "attempt": 0, "event": to_json(event)})
    with pytest.raises(LedgerError):
        read_ledger(ledger.path)


def test_a_ledger_cut_at_its_end_is_found_by_the_journal(tmp_path: Path) -> None:
    """The chain cannot see a cut; the journal, written before each line, can, and has the last line to restore it."""
    path = filled(tmp_path, 4)
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


@pytest.mark.parametrize("content", ["{}\n", "no json\n", "[]\n", "3\n"])
def test_a_damaged_journal_is_refused(tmp_path: Path, content: str) -> None:
    filled(tmp_path)
    (tmp_path / "public.journal").write_text(content)
    with pytest.raises(LedgerError):
        open_ledger(tmp_path)


def test_a_second_process_on_the_same_ledger_is_refused(tmp_path: Path) -> None:
    one, two = open_ledger(tmp_path), open_ledger(tmp_path)
    one.record("a", EVENT, "sum of one")
    with pytest.raises(LedgerError):
        two.record("a", EVENT, "sum of two")
    one.record("b", EVENT, "sum")
    assert [entry.name for entry in read_ledger(one.path)[1]] == ["a", "b"]


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
