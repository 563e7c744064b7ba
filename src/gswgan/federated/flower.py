"""Both sides as Flower apps. All state is in the run folder and on the clients' own disks.

The client answers one question at a time (client.py). The server holds the kernel critic's round, releases and trains
(server.py), or trains and asks the clients that it drew itself in each round of Algorithm 2 (remote_critics.py).
Flower's own samplers take no part. A node that says nothing for a while is asked once more: a client answers with the
same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from gswgan.errors import FederationError, printable, short
from gswgan.federated.answers import known_nodes
from gswgan.federated.client import REFUSED, Client
from gswgan.federated.messages import Fields
from gswgan.federated.remote_critics import Take, run_rounds
from gswgan.federated.server import Round, read_settings
from gswgan.federated.trust import has_rounds, is_refined
from gswgan.plan.settings import pick_device
from gswgan.run.folder import RunFolder
from gswgan.run.loop import Note, Progress, run

RECORD = "gswgan"
"""The one record of a message."""

PATIENCE_SECONDS = 60.0
"""After which a node that has not answered is asked again."""

POLL_SECONDS = 0.2
"""Between two looks at what has come in."""

Who = TypeVar("Who")
Find = Callable[[Mapping[str, Any]], Client]


def make_client_app(find: Find) -> ClientApp:
    """A ClientApp whose client is found from the node's configuration."""
    app = ClientApp()

    @app.query()
    def reply(message: Message, context: Context) -> Message:
        found: dict[str, Any] = reply_to(message.content.config_records.get(RECORD, {}), context.node_config, find)
        return Message(RecordDict({RECORD: ConfigRecord(found)}), reply_to=message)

    return app


def reply_to(fields: Mapping[str, Any], config: Mapping[str, Any], find: Find) -> dict[str, Any]:
    """What leaves. Flower would send the text of whatever is raised here, so nothing is."""
    try:
        return {**find(config).reply(dict(fields))}
    except Exception as wrong:
        print(f"no client: {wrong!r}", flush=True)  # the site's own output
        return {"refused": REFUSED}


def _refuse(config: Mapping[str, Any]) -> Client:
    raise FederationError("supernode", "one that runs any app", "a node of the site's own", "`gswgan federate node`")


client = make_client_app(_refuse)
"""What a SuperNode that runs what it is sent finds in our app: nothing. A site answers by `gswgan federate node`."""


def hold(grid: Grid, held: Round, *, note: Note, progress: Progress, patience: float = PATIENCE_SECONDS) -> None:
    """Ask, take what comes, until everybody has answered or the deadline has passed; then close."""
    asked: dict[int, float] = {}  # node: when
    pending: dict[str, int] = {}  # message: node
    done, names = set[int](), dict[int, str]()
    end, size = held.open(), _size(held.question())
    while not held.is_over():
        here = registered_names(grid)
        names |= here  # a node may have gone when its answer is looked at
        nodes = set(here) - done
        due = [node for node in nodes if node not in asked or time.time() - asked[node] > patience]
        if due:
            sent = [_message(held.question(), node, max(1.0, end - time.time())) for node in due]
            for message, node in zip(list(grid.push_messages(sent)), due):
                if message:
                    pending[message], asked[node] = node, time.time()
        for reply in list(grid.pull_messages(list(pending))):
            node = pending.pop(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            if not reply.has_content():
                note(f"node {node}: no answer ({_shown(reply.error.reason)})")
                continue
            fields = dict(reply.content.config_records.get(RECORD, ConfigRecord()))
            refused = held.take(fields, node=node, registered=names.get(node, ""), down=size, up=_size(fields))
            if str(fields.get("client")) in held.answered or "refused" in fields:
                done.add(node)  # nothing more to ask
            if refused is not None:
                note(f"refused: {refused}")
            progress(len(held.answered))
        time.sleep(POLL_SECONDS)
    held.close()


def registered_names(grid: Grid) -> dict[int, str]:
    """The nodes that are there, with the name under which the operator has registered the key of each, if any."""
    return {info.node_id: info.name for info in grid.get_nodes()}


class FlowerCarrier:
    """Questions to named clients through Flower (remote_critics.Carrier). Who is who is asked of every new node.

    The first node that says a client's id has it for the run, and no other node is asked for that client, or may
    answer for it. A node has one id, whatever else it says later, and only ids of the roster are given. Node numbers
    are the SuperLink's: with authentication one belongs to a public key, and a key that is registered with a name has
    no other id.
    """

    def __init__(
        self,
        grid: Grid,
        seconds: float,
        *,
        known: Mapping[str, int] | None = None,
        roster: Collection[str] | None = None,
        fixed_nodes: bool = True,
        note: Note = print,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """`seconds`: how long a round is open. `known`: clients and their nodes, from before a stop.

        `roster`: the ids that there are; without it any id can be said.
        Without `fixed_nodes` an id may move to another node when its own has gone.
        """
        self._grid, self._seconds, self._note, self._patience = grid, seconds, note, patience
        self._nodes: dict[str, int] = dict(known or {})  # client: node
        self._fixed, self._roster = fixed_nodes, None if roster is None else frozenset(roster)
        self._names: dict[int, str] = {}  # node: as whom its key is registered
        self._met: set[int] = set()  # nodes that have said who they are
        self._hellos: dict[str, int] = {}  # message: node; an answer may come after the round in which it was asked
        self._greeted: dict[int, float] = {}  # node: when

    def ask(self, clients: Sequence[str], fields: Fields, take: Take) -> None:
        """Until each of them has replied, rightly or wrongly, or the time is over."""
        end, size = time.time() + self._seconds, _size(fields)
        waiting, asked = set(clients), dict[str, float]()
        pending: dict[str, str] = {}  # message: client
        while waiting and (now := time.time()) < end:
            self._hellos |= self._push({"hello": ""}, {node: node for node in self._strangers(now)}, end - now)
            due = [name for name in sorted(waiting & set(self._nodes)) if now - asked.get(name, 0) > self._patience]
            asked |= dict.fromkeys(due, now)
            pending |= self._push(fields, {name: self._nodes[name] for name in due}, end - now)
            for reply in list(self._grid.pull_messages([*self._hellos, *pending])):
                message, node = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
                name, greeted = pending.pop(message, None), self._hellos.pop(message, None)
                if not reply.has_content():  # it may be the SuperLink that says so
                    who = greeted or self._nodes.get(name or "")
                    self._note(f"node {who}: no answer ({_shown(reply.error.reason)})")
                    continue
                found: dict[str, Any] = dict(reply.content.config_records.get(RECORD, ConfigRecord()))
                if name is not None:
                    waiting.discard(name)
                    if found.get("client") != name:
                        claimed = short(str(found.get("client")))
                        found = {"client": name, "refused": f"node {node} was asked as {name}, answers as {claimed}"}
                    if (refused := take(found, node=node, down=size, up=_size(found))) is not None:
                        self._note(f"refused: {refused}")
                elif greeted is not None and isinstance(client := found.get("client"), str):
                    is_bound = self._bind(client, greeted)
                    asked |= {client: 0.0} if is_bound else {}  # it may have come back under another number
            time.sleep(POLL_SECONDS / 4)

    def _bind(self, client: str, node: int) -> bool:
        """Whether the node has this id from now on. If not, that is noted.

        A node whose id may still move to it, when its old node has gone, is greeted again later.
        """
        owner, why = self._nodes.get(client, node), ""
        self._met.add(node)
        name = self._names.get(node, "")
        if self._roster is not None and client not in self._roster:
            why = "who is not on the list"
        elif name not in ("", client):
            why = f"and its key is registered as {_shown(short(name))}"
        elif owner != node and (self._fixed or owner in set(self._grid.get_node_ids())):
            why = f"who is node {owner}"
            if not self._fixed:
                self._met.discard(node)
        elif other := next((name for name, its in self._nodes.items() if its == node and name != client), None):
            why = f"and is {_shown(short(other))}"
        if why:
            self._note(f"refused: node {node} says it is {_shown(short(client))}, {why}")
            return False
        self._nodes[client] = node
        return True

    def _strangers(self, now: float) -> list[int]:
        """Nodes to say hello to: new ones, and those that have not said who they are for a while."""
        here = registered_names(self._grid)
        self._names |= here
        unknown = sorted(set(here) - self._met)
        new = [node for node in unknown if now - self._greeted.get(node, 0) > self._patience]
        self._greeted |= dict.fromkeys(new, now)
        return new

    def _push(self, fields: Fields, to: Mapping[Who, int], ttl: float) -> dict[str, Who]:
        """Send the same to these nodes; who is asked by which message."""
        if not to:
            return {}
        sent = list(self._grid.push_messages([_message(fields, node, ttl) for node in to.values()]))
        return {message: who for message, who in zip(sent, to) if message}


def _shown(text: object) -> str:
    """A stranger's text for the terminal: on one line, without control characters, at most 200 characters."""
    return printable(str(text)[:200], keep="")[:200]


def _size(fields: Fields) -> int:
    return sum(len(value) for value in fields.values() if isinstance(value, (str, bytes)))


def _message(fields: Fields, node: int, ttl: float) -> Message:
    content: dict[str, Any] = dict(fields)
    record = RecordDict({RECORD: ConfigRecord(content)})
    return Message(record, dst_node_id=node, message_type="query", ttl=max(1.0, ttl))


def make_server_app(
    find: Callable[[Context], RunFolder],
    *,
    train: bool,
    device: torch.device | None = None,
    note: Note = print,
    progress: Progress = lambda done: None,
    patience: float = PATIENCE_SECONDS,
) -> ServerApp:
    """A ServerApp for the run that is found from its context.

    Kernel critic: it holds the round, releases, and trains if it is told to. Algorithm 2: it trains.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        folder, place = find(context), device or pick_device("auto")
        if has_rounds(folder.plan()):
            settings = read_settings(folder)
            carrier = FlowerCarrier(
                grid, float(settings["seconds"]), known={name: node for node, name in known_nodes(folder).items()},
                roster=settings["clients"], fixed_nodes=settings.get("fixed_nodes", True), note=note,
            )  # fmt: skip
            run_rounds(folder, carrier, device=place, note=note, progress=progress)
            return
        held = Round(folder)
        with held.held():
            if not held.is_released:
                hold(grid, held, note=note, progress=progress, patience=patience)
                held.release()
            note(f"the round is closed after {len(held.answered)} answers; the embedding is released")
        if is_refined(folder.plan()):
            note("the rounds that follow are by files: `gswgan federate combine`")
        elif train and not folder.is_finished:
            run(folder, None, device=place, note=note)

    return app


def _run_of(context: Context) -> RunFolder:
    root = str(context.run_config.get("run", ""))
    if not root:
        raise FederationError("run", root, "the run folder", "flwr run APP LINK --run-config 'run=\"/path/to/RUN\"'")
    return RunFolder(Path(root))


server = make_server_app(_run_of, train=True, progress=lambda done: print(f"{done} done", flush=True))
