"""The client as a Flower ClientApp: one question, one answer. All state is on the client's own disk (client.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from gswgan.errors import FederationError
from gswgan.federated.client import REFUSED, Client

RECORD = "gswgan"
"""The one record of a message."""


def make_app(find: Callable[[Mapping[str, Any]], Client]) -> ClientApp:
    """A ClientApp whose client is found from the node's configuration."""
    app = ClientApp()

    @app.query()
    def reply(message: Message, context: Context) -> Message:
        found: dict[str, Any] = reply_to(message.content.config_records.get(RECORD, {}), context.node_config, find)
        return Message(RecordDict({RECORD: ConfigRecord(found)}), reply_to=message)

    return app


def reply_to(
    fields: Mapping[str, Any], config: Mapping[str, Any], find: Callable[[Mapping[str, Any]], Client]
) -> dict[str, Any]:
    """What leaves. Flower would send the text of whatever is raised here, so nothing is."""
    try:
        return {**find(config).reply(dict(fields))}
    except Exception as wrong:
        print(f"no client: {wrong!r}", flush=True)  # the site's own output
        return {"refused": REFUSED}


def _refuse(config: Mapping[str, Any]) -> Client:
    raise FederationError("supernode", "one that runs any app", "a node of the site's own", "`gswgan federate node`")


app = make_app(_refuse)
"""What a SuperNode that runs what it is sent finds in our app: nothing. A site answers by `gswgan federate node`."""
