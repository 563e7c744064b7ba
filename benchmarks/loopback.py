"""A SuperLink with a database and SuperNodes as real processes on loopback, which can be killed with `kill -9`.

Bytes are counted on the wire, by a forwarder between each SuperNode and the SuperLink. Used by
the tests of processes in tests/federated, silos.py and wire.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gswgan.run.folder import RunFolder

BIN = Path(sys.executable).parent
PATIENCE = 1500.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Forwarder:
    """Counts what a SuperNode sends and receives."""

    def __init__(self, target: int) -> None:
        self.up = self.down = 0
        self._target, self._server = target, socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # the SuperLink is down
                    near.close()
                    continue
                for source, sink, up in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._pump, args=(source, sink, up), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if up:
                    self.up += len(data)
                else:
                    self.down += len(data)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def descendants(pid: int) -> list[int]:
    """The process and all that it started."""
    found, parents = [pid], {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


class Federation:
    """Starts the processes and kills them."""

    def __init__(self, root: Path, app: Path) -> None:
        """`app`: the folder of the Flower app that is run."""
        self.root, self.port, self._app = root, free_port(), app
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.wires: dict[str, Forwarder] = {}
        self.environment = {
            **os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(root / "home"), "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        (root / "home").mkdir()
        link = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (root / "home" / "config.toml").write_text(link)

    def start(self, name: str, *command: str) -> None:
        with (self.root / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]], stdout=log, stderr=log, env=self.environment, cwd=self.root
            )

    def kill(self, name: str) -> None:
        """kill -9 for the process and all that it started."""
        process = self.running.pop(name)
        for pid in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def link(self) -> None:
        self.start(
            "link", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port),
            "--database", str(self.root / "link.db"), "--disable-runtime-dependency-installation",
        )  # fmt: skip
        wait(lambda: is_open(self.port), "the SuperLink")

    def node(
        self, name: str, client: str, *, trust: str = "trusted-aggregator", cap: float = 100.0, classes: int = 3,
        **more: str,
    ) -> None:  # fmt: skip
        """A SuperNode of this client, whose data is in <client>.npz and whose state is its own; `more`: its faults."""
        if name not in self.wires:
            self.wires[name] = Forwarder(self.port)
        config = {
            "client": client, "data": str(self.root / f"{client}.npz"), "state": str(self.root / "state" / name),
            "trust": trust, "neighbours": "zeroed" if trust == "trusted-aggregator" else "replace-one", **more,
        }  # fmt: skip
        text = " ".join(f'{key}="{value}"' for key, value in config.items())
        self.start(
            name, "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.wires[name].port}",
            "--host", "127.0.0.1", "--port", str(free_port()),
            "--node-config", f"{text} classes={classes} epsilon={cap} delta=1e-5",
        )  # fmt: skip

    def pinned_node(self, name: str, client: str, *, trust: str, cap: float = 100.0, classes: int = 3) -> None:
        """`gswgan federate node`: as `node`, but it runs no code except what is installed."""
        if name not in self.wires:
            self.wires[name] = Forwarder(self.port)
        config = {
            "client": client, "data": str(self.root / f"{client}.npz"), "state": str(self.root / "state" / name),
            "trust": trust, "neighbours": "zeroed" if trust == "trusted-aggregator" else "replace-one",
            "superlink": f"127.0.0.1:{self.wires[name].port}", "classes": classes, "epsilon": cap, "delta": 1e-5,
            "insecure": True,
        }  # fmt: skip
        site = self.root / f"{name}.toml"
        site.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
        self.start(name, Path(sys.executable).name, "-m", "gswgan", "federate", "node", str(site))

    def hold(self, app: Path | None = None, **config: str) -> None:
        """`flwr run`: the server begins the round, or goes on with it; with another app, if one is given."""
        source, app = app or self._app, self.root / ("app" if app is None else f"app-{app.name.replace('_', '-')}")
        if not app.exists():
            shutil.copytree(source, app, ignore=shutil.ignore_patterns("__pycache__"))
        text = " ".join(f'{key}="{value}"' for key, value in {"run": str(self.root / "RUN"), **config}.items())
        command = [str(BIN / "flwr"), "run", str(app), "here", "--run-config", text]
        subprocess.run(command, env=self.environment, cwd=self.root, check=True, capture_output=True)

    def bytes_on_the_wire(self) -> dict[str, dict[str, int]]:
        """What each node has sent and received, printed (pytest -s)."""
        found = {name: {"up": wire.up, "down": wire.down} for name, wire in self.wires.items()}
        print(json.dumps(found))
        return found

    def stop(self) -> None:
        for name in list(self.running):
            self.kill(name)
        for wire in self.wires.values():
            wire.close()


class SecureFederation(Federation):
    """With certificates and node keys made by the commands of docs/federated.md."""

    def __init__(self, root: Path, sites: list[str]) -> None:
        """`sites`: by name; each has, or gets, a folder of its own in `root`, with its key and its `site.toml`."""
        from gswgan.federated.node import APP

        super().__init__(root, APP)
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-nodes")
        self.run("openssl", "req", "-x509", *curve, "-days", "2", "-keyout", "ca.key", "-out", "ca.crt", "-subj",
                 "/CN=consortium")  # fmt: skip
        self.run("openssl", "req", *curve, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
        (root / "names.txt").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self.run("openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
                 "-CAcreateserial", "-days", "2", "-out", "server.pem", "-extfile", "names.txt")  # fmt: skip
        for site in sites:
            (root / site).mkdir(exist_ok=True)
            self.run("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", f"{site}/node.key")
        (root / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{root / "ca.crt"}"\n'
        )

    def run(self, *command: str) -> None:
        done = subprocess.run(command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def link(self) -> None:
        self.start(
            "link", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), "--database", "link.db",
            "--disable-runtime-dependency-installation", "--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem",
            "--ssl-keyfile", "server.key", "--enable-supernode-auth",
        )  # fmt: skip
        wait(lambda: is_open(self.port), "the SuperLink")

    def register(self, sites: list[str]) -> None:
        """The keys of the nodes, each under its site's name."""
        for name in sites:
            self.run(str(BIN / "flwr"), "supernode", "register", f"{name}/node.key.pub", "here", "--name", name)

    def settings_of(self, name: str) -> str:
        """What a site's file says of the network."""
        found = {
            "superlink": f"127.0.0.1:{self.port}", "root-certificates": str(self.root / "ca.crt"),
            "node-key": str(self.root / name / "node.key"),
        }  # fmt: skip
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in found.items())

    def site(self, name: str) -> None:
        """The site's node."""
        site = str(self.root / name / "site.toml")
        self.start(name, Path(sys.executable).name, "-m", "gswgan", "federate", "node", site)


def rows_of(folder: RunFolder) -> list[dict[str, Any]]:
    """What came in, as the server has logged it."""
    log = folder.private / "answers.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait(ready: Callable[[], object], what: str) -> None:
    """Until it is so. The limit is for what never happens: no machine is so busy that it would take this long."""
    end = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < end, f"waited {PATIENCE:g} s for {what}"
        time.sleep(0.2)
