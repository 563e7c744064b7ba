"""`gswgan federate node` of a site that is told to misbehave: `python silo_node.py SITE.toml hang|garbage`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.federated.node import run_node
from gswgan.federated.site import check_site, client_of, read_file


def main(site: str, fault: str) -> None:
    config = check_site(read_file(Path(site)))
    client = client_of(config, look=True)
    honest, sent = client.reply, list[str]()

    def reply(fields: Any) -> Any:
        found = honest(fields)
        if "sums" not in found:
            return found
        (client.home / "asked").touch()
        if fault == "hang":  # recorded and kept, not sent
            threading.Event().wait()
        sent.append(fault)
        if len(sent) == 1:
            return {**found, "sums": np.random.default_rng(0).bytes(len(found["sums"]))}
        return {**found, "client": "site-00000"}  # and asked once more, in the name of another site

    client.reply = reply  # type: ignore[method-assign]
    run_node(config, client, note=lambda text: print(text, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
