"""A consortium's day over real processes: three sites with TLS and node keys, one killed, one that sends garbage.

What it sends then has the name of another site, and its key has not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from silo_rounds import parts_of
from typer.testing import CliRunner

from gswgan.cli.main import app
from gswgan.federated.memory import home_of
from gswgan.privacy.ledger import read_ledger
from gswgan.run.folder import RunFolder, write_json
from loopback import BIN, Federation, descendants, is_open, rows_of, wait

pytest.importorskip("flwr")
from gswgan.federated.node import APP

NODE = Path(__file__).parent / "silo_node.py"
DEADLINE = 36_000.0
"""Of a round that the test ends, when all has happened that is to happen in it."""


class SecureFederation(Federation):
    """With certificates and node keys made by the commands of docs/federated.md."""

    def __init__(self, root: Path, sites: list[str]) -> None:
        super().__init__(root, APP)
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-nodes")
        self.run("openssl", "req", "-x509", *curve, "-days", "2", "-keyout", "ca.key", "-out", "ca.crt", "-subj",
                 "/CN=consortium")  # fmt: skip
        self.run("openssl", "req", *curve, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
        (root / "names.txt").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self.run("openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
                 "-CAcreateserial", "-days", "2", "-out", "server.pem", "-extfile", "names.txt")  # fmt: skip
        for site in sites:
            (root / site).mkdir()
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

    def site(self, name: str, fault: str = "") -> None:
        """The site's node; with a fault, the same node with a client that misbehaves."""
        site = str(self.root / name / "site.toml")
        command = [str(NODE), site, fault] if fault else ["-m", "gswgan", "federate", "node", site]
        self.start(name, Path(sys.executable).name, *command)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[SecureFederation]:
    made = SecureFederation(tmp_path, list(parts_of("record")))
    yield made
    made.stop()


def ask(*arguments: object, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return dict(json.loads(result.stdout))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_consortiums_day_with_a_kill_and_garbage(federation: SecureFederation):
    root, parts = federation.root, parts_of("record")
    honest, killed, garbage = parts
    for name, part in parts.items():
        np.savez(root / name / "images.npz", images=part.images[:, 0], labels=part.labels)
        table = {
            "client": name, "data": str(root / name / "images.npz"), "classes": 10, "protect": "record",
            "state": str(root / name / "state"), "trust": "untrusted-server", "epsilon": 20.0, "delta": 1e-5,
            "superlink": f"127.0.0.1:{federation.port}", "root-certificates": str(root / "ca.crt"),
            "node-key": str(root / name / "node.key"),
        }  # fmt: skip
        (root / name / "site.toml").write_text(
            "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
        )
    (root / "sites.csv").write_text("\n".join(f"{name},{part.n}" for name, part in parts.items()))
    ask("federate", "plan", "--protect", "record", "--clients", root / "sites.csv", "--classes", 10, "--image-size", 8,
        "--min-sites", 2, "--epsilon", 20, "--delta", 1e-5, "--steps", 20, "--deadline", DEADLINE,
        "--out", root / "RUN")  # fmt: skip
    folder = RunFolder(root / "RUN")
    for name in parts:
        assert ask("federate", "inspect", root / "RUN/plan.json", "--site", root / name / "site.toml")["bytes"] > 0
    homes = {name: home_of(root / name / "state", name) for name in parts}

    federation.link()
    for name in parts:
        federation.run(str(BIN / "flwr"), "supernode", "register", f"{name}/node.key.pub", "here", "--name", name)
    federation.site(honest)
    federation.site(killed, "hang")
    federation.site(garbage, "garbage")
    federation.hold()
    wait(lambda: (homes[killed] / "asked").exists(), "the site that is killed with its answer on the disk")
    (kept,) = homes[killed].glob("*/answer.bin")
    before = kept.read_bytes()
    federation.kill(killed)
    federation.site(killed)

    def taken() -> set[str]:
        return {row["client"] for row in rows_of(folder) if "digest" in row}

    wait(lambda: taken() == {honest, killed}, "the honest site, and the killed one after its restart")
    wait(lambda: any(row["client"] == garbage and "refused" in row for row in rows_of(folder)), "garbage")
    wait(lambda: any(f"registered as {garbage}" in row.get("refused", "") for row in rows_of(folder)), "a wrong name")
    seen = {one["client"]: one for one in ask("federate", "status", root / "RUN")["answers"]}
    assert [seen[name]["answers"] for name in parts] == [1, 1, 0]
    assert "too large" in seen[garbage]["last_refusal"]
    opened = folder.private / "opened.json"
    write_json(opened, {"at": json.loads(opened.read_text())["at"] - DEADLINE})  # the deadline has passed
    wait(lambda: folder.is_finished and not folder.key.exists(), "the end of the run")

    assert kept.read_bytes() == before  # what was sent after the restart
    ask("release", root / "RUN", "--out", root / "bundle")
    for name in parts:
        (ledger,) = homes[name].glob("*/ledger.jsonl")
        assert len(read_ledger(ledger)[1]) == 1, name  # what it was about to send, once
        code = 1 if name == garbage else 0
        found = ask("verify", root / "bundle", "--site", root / name / "state", code=code)
        assert found["verified"] is True
        assert bool(found["site"]["disagreements"]) == (name == garbage)
    told = json.loads((root / "bundle/privacy.json").read_text())
    assert told["sites"]["missing"] == [garbage]
    started = [pid for process in federation.running.values() for pid in descendants(process.pid)]
    federation.stop()
    wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "the end of all that was started")
