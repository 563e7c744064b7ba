"""A consortium's day over real processes: three sites with TLS and node keys, one killed, one that sends garbage.

What it sends then has the name of another site, and its key has not.
"""

from __future__ import annotations

import json
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
from loopback import SecureFederation, descendants, rows_of, wait

pytest.importorskip("flwr")
NODE = Path(__file__).parent / "silo_node.py"
DEADLINE = 36_000.0
"""Of a round that the test ends, when all has happened that is to happen in it."""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[SecureFederation]:
    made = SecureFederation(tmp_path, list(parts_of("record")))
    yield made
    made.stop()


def start_with_fault(federation: SecureFederation, name: str, fault: str) -> None:
    """The site's node with a client that misbehaves."""
    site = str(federation.root / name / "site.toml")
    federation.start(name, Path(sys.executable).name, str(NODE), site, fault)


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
        }  # fmt: skip
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        (root / name / "site.toml").write_text(lines + federation.settings_of(name))
    (root / "sites.csv").write_text("\n".join(f"{name},{part.n}" for name, part in parts.items()))
    ask("federate", "plan", "--protect", "record", "--clients", root / "sites.csv", "--classes", 10, "--image-size", 8,
        "--min-sites", 2, "--epsilon", 20, "--delta", 1e-5, "--steps", 20, "--deadline", DEADLINE,
        "--out", root / "RUN")  # fmt: skip
    folder = RunFolder(root / "RUN")
    for name in parts:
        assert ask("federate", "inspect", root / "RUN/plan.json", "--site", root / name / "site.toml")["bytes"] > 0
    homes = {name: home_of(root / name / "state", name) for name in parts}

    federation.link()
    federation.register(list(parts))
    federation.site(honest)
    start_with_fault(federation, killed, "hang")
    start_with_fault(federation, garbage, "garbage")
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
