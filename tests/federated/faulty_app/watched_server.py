"""The server as it ships, with a window: the question and the generator's gradient of each round are written down.

With `replay="FOLDER"` it is another server, one that asks every node the questions in the folder, and writes the
replies beside them.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from gswgan.federated import flower, remote_critics

SECONDS = 1200.0


class Watched(remote_critics.RemoteCritics):
    def _ask(self, answers: Any, batch: Any) -> None:
        write(self._window() / f"{self._step}.question", remote_critics.question(self._plan, batch))
        super()._ask(answers, batch)

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        gradient = super().upstream_gradient(fake, labels)
        np.save(self._window() / f"{self._step}.npy", gradient.numpy())
        return gradient

    def _window(self) -> Path:
        window: Path = self._folder.private / "watched"
        window.mkdir(exist_ok=True)
        return window


remote_critics.RemoteCritics = Watched  # type: ignore[misc]


def write(path: Path, fields: Any) -> None:
    plain = {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}
    path.write_text(json.dumps(plain))


def read(path: Path) -> dict[str, Any]:
    fields = json.loads(path.read_text())
    return fields | {name: bytes.fromhex(fields[name]) for name in ("images", "labels")}


def ask_again(grid: Grid, path: Path) -> None:
    """The same question for all nodes, until they have replied."""
    nodes, end = list(grid.get_node_ids()), time.time() + SECONDS
    pending = list(grid.push_messages([flower._message(read(path), node, SECONDS) for node in nodes]))
    while pending and time.time() < end:
        for reply in grid.pull_messages(pending):
            pending.remove(reply.metadata.reply_to_message_id)
            if reply.has_content():
                fields = dict(reply.content.config_records[flower.RECORD])
                write(path.with_name(f"{path.stem}-{fields['client']}.reply"), fields)
        time.sleep(0.2)


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    if replay := str(context.run_config["replay"]):
        for path in sorted(Path(replay).glob("*.question")):
            ask_again(grid, path)
        (Path(replay) / "done").touch()
    else:
        flower.server(grid, context)
