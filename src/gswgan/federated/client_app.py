"""The client as a Flower ClientApp: one question, one answer. All state is on the client's own disk (client.py).

A SuperNode says in its `--node-config` who it is: `client`, `data` (what `gswgan train --data` takes), `state` (a
folder), `trust`, and its cap: `epsilon`, `delta` and, if not one client zeroed, `neighbours`; a `book`, if it has one.
Where the data does not state them, also `classes` and `image-size`. `min-records`, and `accuracy` with `judge`, say
when it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from gswgan.federated.client import Client, client_of

RECORD = "gswgan"
"""The one record of a message."""


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
