"""Questions through Flower, with a grid that is a list: who is met, who is asked, what is lost and found again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
from gswgan.federated import flower
from gswgan.federated.flower import RECORD, FlowerCarrier

SUPERLINK = 1
"""The number under which the SuperLink answers for a node that cannot be reached."""

When = Callable[[int, dict[str, Any]], bool]


class Grid:
    """Delivers at once to nodes that are here. What `holds` says waits; what `breaks` says comes back as an error."""

    def __init__(self, nodes: dict[int, str]) -> None:
        self.nodes, self.sent, self.reason = nodes, list[tuple[int, dict[str, Any]]](), "gone"
        self.holds: When = lambda node, fields: False
        self.breaks: When = lambda node, fields: False
        self._replies: dict[str, Any] = {}
        self._held: dict[str, Any] = {}
        self.names = dict[int, str]()  # under which the operator has registered the nodes' keys

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=node, name=self.names.get(node, "")) for node in self.nodes]

    def push_messages(self, messages: Iterable[tuple[int, dict[str, Any]]]) -> list[str]:
        return [self._deliver(*message) for message in messages]

    def _deliver(self, node: int, fields: dict[str, Any]) -> str:
        name, broken = f"message {len(self.sent)}", self.breaks(node, fields)
        self.sent.append((node, fields))
        if node in self.nodes:
            said = {"client": self.nodes[node], "answer": "yes"}
            source = SUPERLINK if broken else node
            (self._held if self.holds(node, fields) else self._replies)[name] = SimpleNamespace(
                metadata=SimpleNamespace(reply_to_message_id=name, src_node_id=source),
                content=SimpleNamespace(config_records={RECORD: said}),
                has_content=lambda: not broken,
                error=SimpleNamespace(reason=self.reason),
            )
        return name

    def let_go(self) -> None:
        self._replies |= self._held

    def pull_messages(self, names: Iterable[str]) -> list[Any]:
        return [self._replies.pop(name) for name in names if name in self._replies]


class Clock:
    """Time that passes only while somebody sleeps: what is tested does not depend on how busy the machine is."""

    def __init__(self) -> None:
        self.now = 1e9

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "time", Clock())
    monkeypatch.setattr(flower, "_message", lambda fields, node, ttl: (node, dict(fields)))


def ask(carrier: FlowerCarrier, *clients: str, number: int = 0) -> list[tuple[str, int]]:
    """Who answered, from which node."""
    found: list[tuple[str, int]] = []

    def take(fields: Any, *, node: int, down: int, up: int) -> None:
        assert (down, up) == (len(str(number)), len(fields["client"]) + len("yes"))
        found.append((fields["client"], node))

    carrier.ask(clients, {"round": str(number)}, take)
    return found


def carrier_for(grid: Any, seconds: float = 30.0, patience: float = 60.0, **options: Any) -> FlowerCarrier:
    return FlowerCarrier(grid, seconds, patience=patience, **{"note": lambda text: None, **options})


def questions(grid: Grid) -> list[int]:
    return [node for node, fields in grid.sent if "round" in fields]


def test_those_who_were_drawn_are_asked_once_and_nobody_else():
    grid = Grid({11: "a", 12: "b", 13: "c"})
    carrier = carrier_for(grid)
    assert sorted(ask(carrier, "a", "c")) == [("a", 11), ("c", 13)]
    assert ask(carrier, "b", number=1) == [("b", 12)]
    assert questions(grid) == [11, 13, 12]
    assert len([fields for _, fields in grid.sent if "hello" in fields]) == 3


def test_a_key_that_is_registered_with_a_name_stands_for_no_other_client():
    grid, said = Grid({11: "a", 12: "a"}), list[str]()
    grid.names = {11: "b", 12: "a"}
    assert ask(carrier_for(grid, note=said.append), "a") == [("a", 12)]
    assert "its key is registered as b" in said[0]


def test_a_hello_that_is_answered_after_its_round_is_not_lost():
    grid = Grid({11: "a"})
    carrier = carrier_for(grid)
    assert ask(carrier, "a") == [("a", 11)]
    grid.nodes[12] = "b"
    grid.holds = lambda node, fields: "hello" in fields  # b is slow: the round ends without it
    assert ask(carrier, "a", number=1) == [("a", 11)]
    grid.let_go()
    assert ask(carrier, "b", number=2) == [("b", 12)]


def test_a_hello_that_the_superlink_could_not_deliver_is_said_again():
    grid = Grid({11: "a"})
    grid.breaks = lambda node, fields: len(grid.sent) < 1
    assert ask(carrier_for(grid, patience=2.0), "a") == [("a", 11)]
    assert questions(grid) == [11]


def test_a_client_that_comes_back_under_another_number_is_asked_in_the_same_round():
    grid = Grid({11: "a", 12: "b"})
    grid.holds = lambda node, fields: node == 12 and "round" in fields  # it dies with the question
    found: list[tuple[str, int]] = []

    def take(fields: Any, *, node: int, down: int, up: int) -> None:
        found.append((fields["client"], node))
        grid.nodes = {11: "a", 22: "b"}

    carrier_for(grid, fixed_nodes=False).ask(("a", "b"), {"round": "0"}, take)
    assert found == [("a", 11), ("b", 22)]
    assert questions(grid) == [11, 12, 22]


def test_a_client_that_comes_back_while_its_old_node_is_still_listed_is_greeted_again():
    grid, found, said = Grid({11: "a", 12: "b"}), list[tuple[str, int]](), list[str]()
    grid.holds = lambda node, fields: node == 12 and "round" in fields  # it dies with the question

    def take(fields: Any, *, node: int, down: int, up: int) -> None:
        found.append((fields["client"], node))
        grid.nodes = {11: "a", 12: "b", 22: "b"}

    def note(text: str) -> None:
        said.append(text)
        grid.nodes.pop(12, None)  # the SuperLink notices after it has refused the new node

    carrier_for(grid, patience=2.0, fixed_nodes=False, note=note).ask(("a", "b"), {"round": "0"}, take)
    assert found == [("a", 11), ("b", 22)]
    assert len(said) == 1


@pytest.mark.parametrize("fixed", [True, False])
def test_a_node_cannot_take_another_clients_questions_by_saying_its_id(fixed: bool):
    grid, said = Grid({11: "a", 12: "b"}), list[str]()
    carrier = carrier_for(grid, fixed_nodes=fixed, note=said.append)
    assert sorted(ask(carrier, "a", "b")) == [("a", 11), ("b", 12)]
    grid.nodes[66] = "a"  # a third node, or client b under another number, says that it is a
    for number in (1, 2):
        assert ask(carrier, "a", number=number) == [("a", 11)]
    assert 66 not in questions(grid)
    assert "node 66 says it is a, who is node 11" in " ".join(said)


def test_an_id_stays_with_its_node_when_that_has_gone_and_when_the_server_comes_back():
    grid, said = Grid({66: "a", 12: "b"}), list[str]()
    carrier = carrier_for(grid, known={"a": 11}, note=said.append)  # what the log had before the server died
    assert ask(carrier, "a", "b") == [("b", 12)]
    assert 66 not in questions(grid)
    assert "node 66 says it is a, who is node 11" in " ".join(said)


def test_a_node_that_was_asked_as_one_client_cannot_answer_as_another():
    grid, taken = Grid({11: "a", 12: "b"}), list[dict[str, Any]]()
    carrier = carrier_for(grid)
    assert sorted(ask(carrier, "a", "b")) == [("a", 11), ("b", 12)]
    grid.nodes[11] = "b"
    carrier.ask(("a", "b"), {"round": "1"}, lambda fields, **more: taken.append(fields))
    by = {fields["client"]: fields for fields in taken}
    assert by["b"] == {"client": "b", "answer": "yes"}
    assert by.get("a") == {"client": "a", "refused": "node 11 was asked as a, answers as b"}


def test_a_question_that_got_lost_is_asked_again_after_a_while_and_a_silent_client_ends_with_the_round():
    grid = Grid({11: "a"})
    grid.breaks = lambda node, fields: "round" in fields and len(questions(grid)) < 1
    assert ask(carrier_for(grid, patience=2.0), "a", "nobody") == [("a", 11)]
    assert questions(grid) == [11, 11]


@pytest.mark.parametrize("fixed", [True, False])
def test_a_node_that_keeps_greetings_back_gets_one_id_and_only_one_of_the_list(fixed: bool):
    grid, said = Grid({}), list[str]()
    carrier = carrier_for(grid, patience=1.0, fixed_nodes=fixed, roster=("a", "b", "c"), note=said.append)
    grid.holds = lambda node, fields: "hello" in fields
    for number, name in enumerate(("nobody", "a", "b", "c")):
        grid.nodes[66] = name
        assert ask(carrier, "a", number=number) == []
    grid.holds = lambda node, fields: False
    grid.let_go()
    grid.nodes[12] = "b"
    assert ("b", 12) in ask(carrier, "b", "c", number=9)
    assert {name: node for name, node in carrier._nodes.items()} == {"a": 66, "b": 12}
    assert "node 66 says it is nobody, who is not on the list" in " ".join(said)
    assert "node 66 says it is b, and is a" in " ".join(said)


def test_what_a_node_says_is_printed_without_control_characters_and_short():
    grid, said, escape = Grid({11: "a\x1b[2J\n"}), list[str](), "\x1b]0;owned\x07\n" + "x" * 5000
    grid.reason = escape
    grid.breaks = lambda node, fields: len(grid.sent) < 1
    ask(carrier_for(grid, patience=2.0, roster=("a",), note=said.append), "a")
    assert "no answer" in said[0]
    assert "who is not on the list" in said[1]
    held = SimpleNamespace(
        open=lambda: 1e9 + 10,
        question=lambda: {},
        is_over=lambda: len(said) > 2,
        answered=(),
        close=lambda: None,
    )
    grid.breaks = lambda node, fields: True
    flower.hold(grid, held, note=said.append, progress=lambda done: None)  # type: ignore[arg-type]
    assert "no answer" in said[2]
    assert all(line.isprintable() and len(line) < 260 for line in said)
