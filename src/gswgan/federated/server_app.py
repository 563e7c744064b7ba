"""The server as a Flower ServerApp: hold the round, release, train. All state is in the run folder (round.py).

Every node that appears is asked, once more if it says nothing for a while: a client answers with the same bytes. We
ask everybody, so nobody is sampled; Flower's own samplers take no part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from gswgan.errors import FederationError
from gswgan.federated.round import Round
from gswgan.training.run_folder import RunFolder

RECORD = "gswgan"
PATIENCE = 60.0
"""Seconds after which a node that has not answered is asked again."""
POLL = 0.2
"""Seconds between two looks at what has come in."""

Note = Callable[[str], None]
Progress = Callable[[int], None]
"""Called with the number of clients whose answers count."""


def hold(
    grid: Grid, held: Round, *, note: Note = print, progress: Progress = lambda done: None, patience: float = PATIENCE
) -> None:
    """Ask, take what comes, until everybody has answered or the deadline has passed; then close."""
    asked: dict[int, float] = {}  # node: when
    pending: dict[str, int] = {}  # message: node
    done: set[int] = set()
    end, size = held.open(), sum(len(value) for value in held.question().values())
    while not held.is_over():
        nodes = set(grid.get_node_ids()) - done
        due = [node for node in nodes if node not in asked or time.time() - asked[node] > patience]
        if due:
            sent = [_message(held, node, max(1.0, end - time.time())) for node in due]
            for message, node in zip(list(grid.push_messages(sent)), due):
                if message:
                    pending[message], asked[node] = node, time.time()
        for reply in list(grid.pull_messages(list(pending))):
            node = pending.pop(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            if not reply.has_content():
                note(f"node {node}: no answer ({reply.error.reason})")
                continue
            fields = dict(reply.content.config_records.get(RECORD, ConfigRecord()))
            up = sum(len(value) for value in fields.values() if isinstance(value, (str, bytes)))
            refused = held.take(fields, node=node, down=size, up=up)
            if str(fields.get("client")) in held.answered or "refused" in fields:
                done.add(node)  # nothing more to ask
            if refused is not None:
                note(f"refused: {refused}")
            progress(len(held.answered))
        time.sleep(POLL)
    held.close()


def _message(held: Round, node: int, ttl: float) -> Message:
    content = RecordDict({RECORD: ConfigRecord(dict(held.question()))})
    return Message(content, dst_node_id=node, message_type="query", ttl=ttl)


def make_app(
    find: Callable[[Context], Round],
    *,
    after: Callable[[Round], None] = lambda held: None,
    note: Note = print,
    progress: Progress = lambda done: None,
    patience: float = PATIENCE,
) -> ServerApp:
    """A ServerApp that holds the round that is found from its context, releases, and does what comes after."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        held = find(context)
        with held.held():
            if not held.is_released:
                hold(grid, held, note=note, progress=progress, patience=patience)
                held.release()
            note(f"the round is closed after {len(held.answered)} answers; the embedding is released")
        after(held)

    return app


def _round_of(context: Context) -> Round:
    root = str(context.run_config.get("run", ""))
    if not root:
        raise FederationError("run", root, "the run folder", "flwr run APP LINK --run-config 'run=\"/path/to/RUN\"'")
    return Round(RunFolder(Path(root)))


def _train(held: Round) -> None:
    from gswgan.synthesizer import pick_device
    from gswgan.training.centralized import run

    if not held.folder.is_finished:
        run(held.folder, None, device=pick_device("auto"), note=print)


app = make_app(_round_of, after=_train, progress=lambda done: print(f"{done} clients have answered", flush=True))
