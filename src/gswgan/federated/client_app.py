"""The client as a Flower ClientApp: one question, one answer. All state is on the client's own disk (client.py).

A SuperNode says in its `--node-config` who it is: `client`, `data` (what `gswgan train --data` takes), `state` (a
folder), `trust`, and its cap: `epsilon`, `delta` and, if not one client zeroed, `neighbours`. Where the data does not
state them, also `classes` and `image-size`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from gswgan.data import ImageData, load_data
from gswgan.errors import FederationError
from gswgan.federated.client import Cap, Client
from gswgan.federated.trust import check_trust

RECORD = "gswgan"
"""The one record of a message."""


def one_person(data: ImageData, name: str) -> ImageData:
    """All of the data as one person's."""
    return dataclasses.replace(data, persons=np.zeros(data.n, np.int64), person_ids=(name,))


def client_of(config: Mapping[str, Any]) -> Client:
    """The client that a SuperNode's configuration describes."""
    needed = ("client", "data", "state", "trust", "epsilon", "delta")
    if missing := [name for name in needed if name not in config]:
        raise FederationError("node-config", missing[0], f"{', '.join(needed)} in --node-config")
    name, size = str(config["client"]), config.get("image-size")
    data = load_data(str(config["data"]), classes=config.get("classes"), image_size=size)
    cap = Cap(
        epsilon=float(config["epsilon"]),
        delta=float(config["delta"]),
        neighbours=config.get("neighbours", "zeroed"),
    )
    trust = check_trust(str(config["trust"]))
    return Client(name, one_person(data, name), Path(str(config["state"])), trust=trust, cap=cap)


def make_app(find: Callable[[Mapping[str, Any]], Client]) -> ClientApp:
    """A ClientApp whose client is found from the node's configuration."""
    app = ClientApp()

    @app.query()
    def reply(message: Message, context: Context) -> Message:
        fields = dict(message.content[RECORD])
        found: dict[str, Any] = {**find(context.node_config).reply(fields)}
        return Message(RecordDict({RECORD: ConfigRecord(found)}), reply_to=message)

    return app


app = make_app(client_of)
