"""Who listens on a port of the loopback interface, as Linux tells it under /proc.

Any user of the machine can listen on a free port. So before something is sent to a process that we started, we ask
whether it is that process that would get it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

from gswgan.errors import FederationError

HOST = "127.0.0.1"
TABLE = Path("/proc/net/tcp")
_LISTENS = "0A"


def check_known() -> None:
    """Raise a FederationError where the system does not tell who listens."""
    if not TABLE.exists():
        raise FederationError(
            "system", sys.platform, f"Linux with {TABLE}, which tells whether our SuperNode has its port",
            "Run the node on Linux, or answer by files (`gswgan federate answer`).",
        )  # fmt: skip


def is_listener(process: int, port: int) -> bool:
    """Whether there is a listener on 127.0.0.1:port, and every one there is this process."""
    address = int.from_bytes(socket.inet_aton(HOST), sys.byteorder)  # the table has it in the machine's own order
    rows = (line.split() for line in TABLE.read_text().splitlines()[1:])
    found = {f"socket:[{row[9]}]" for row in rows if row[1] == f"{address:08X}:{port:04X}" and row[3] == _LISTENS}
    return bool(found) and found <= _open_files(process)


def _open_files(process: int) -> set[str]:
    """What the open files of a process are; nothing if it has ended."""
    folder, found = f"/proc/{process}/fd", set[str]()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(os.readlink(f"{folder}/{name}"))
    return found


def reach_directly() -> None:
    """Make the HTTP clients of this process, from now on, use no proxy for the loopback interface."""
    both = (os.environ.get(name, "") for name in ("no_proxy", "NO_PROXY"))
    known = list(dict.fromkeys(host.strip() for text in both for host in text.split(",") if host.strip()))
    if "*" not in known:
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*known, HOST]))
