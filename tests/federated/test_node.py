"""A site's node runs only what the site installed: a changed app is refused, and finds nothing."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rounds import make_clients, people, small_plan

pytest.importorskip("flwr")
import httpx
import uvicorn
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.supercore.task_identity import TaskIdentity

from gswgan.data import clients
from gswgan.errors import FederationError
from gswgan.federated import node
from gswgan.federated.flower import RECORD
from gswgan.federated.listener import is_listener
from gswgan.federated.memory import home_of
from gswgan.federated.messages import question
from gswgan.federated.node import (
    APP,
    MAX_MESSAGE_BYTES,
    _command,
    _free_port,
    _runtime,
    _signed,
    built,
    check_app,
    reply_message,
)
from gswgan.federated.server import create_run
from gswgan.federated.trust import make_federated_plan
from gswgan.plan.facts import Facts
from gswgan.privacy.ledger import read_ledger
from loopback import Federation, wait

HOSTILE = Path(__file__).parent / "hostile_app"
DATA = people()


def changed(root: Path, name: str, old: str, new: str) -> bytes:
    """Our app with a change in one file, or a file more."""
    shutil.copytree(APP, root / name)
    path = root / name / "pyproject.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return built(root / name)


def test_the_app_that_is_installed_is_accepted_and_any_other_is_not(tmp_path: Path):
    shutil.copytree(APP, tmp_path / "copy")
    check_app(built(tmp_path / "copy"))  # as `flwr run` builds it, wherever it lies
    others = [
        changed(tmp_path, "client", "gswgan.federated.flower:client", "hostile:client"),
        changed(tmp_path, "more", "dependencies = []", 'dependencies = ["hostile"]'),
        built(HOSTILE),
        built(APP) + b"\0",
        b"",
    ]
    for other in others:
        with pytest.raises(FederationError, match="the app that this site installed"):
            check_app(other)


def test_a_message_with_another_app_is_refused_before_the_client_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    plan = small_plan(DATA)
    client = next(iter(make_clients(tmp_path, DATA, plan).values()))
    said = list[str]()
    message = Message(RecordDict({RECORD: ConfigRecord(dict(question(plan)))}), dst_node_id=1, message_type="query")
    refused = reply_message(message, built(HOSTILE), client, said.append)
    assert not refused.has_content()
    assert "the app that this site installed" in refused.error.reason
    assert "refused" in said[0]
    assert not list(client.home.glob("*/ledger.jsonl"))
    answered = reply_message(message, built(APP), client, said.append)
    assert "sums" in answered.content.config_records[RECORD]


def test_nothing_of_the_site_is_in_the_arguments_of_a_process(tmp_path: Path):
    config = {"client": "alice", "data": "/data/alice.npz", "state": "/var/lib/gswgan", "superlink": "a.example:1"}
    command = " ".join(_command({**config, "node-key": "k", "root-certificates": "c"}, 5, tmp_path / "secret"))
    assert all(text in command for text in ("a.example:1", "--isolation process"))
    assert "--insecure" not in command
    assert not any(word in command for word in ("alice", "/data", "/var/lib", "node-config"))


@pytest.mark.filterwarnings("ignore")  # of the libraries that serve Flower's API
def test_who_does_not_know_the_executors_secret_gets_no_message():
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supernode.main import create_app
    from flwr.supernode.nodestate import NodeStateFactory

    state = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
    port, ask = _free_port(), AcquireTaskRequest(supported_task_types=["flwr-clientapp"])
    server = uvicorn.Server(
        uvicorn.Config(create_app(state, superexec_auth_secret=b"known"), host="127.0.0.1", port=port)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    wait(lambda: server.started or not thread.is_alive(), "the Runtime API")
    assert server.started
    try:
        for secret in (None, b"guessed", b"known"):
            extra = [] if secret is None else [_signed(secret)]
            with contextlib.closing(_runtime(f"127.0.0.1:{port}", *extra)) as runtime:
                if secret == b"known":
                    assert not runtime.AcquireTask(ask).token  # there is no message, and it is told so
                else:
                    with pytest.raises(httpx.HTTPStatusError, match="401"):
                        runtime.AcquireTask(ask)
    finally:
        server.should_exit = True
        thread.join()


_LISTENER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    print("listening", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def child(program: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def was_called(listener: socket.socket) -> bool:
    listener.setblocking(False)
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def test_a_listener_that_is_not_the_supernode_gets_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asker = next(iter(make_clients(tmp_path, DATA, small_plan(DATA)).values()))
    with socket.create_server(("127.0.0.1", 0)) as foreign, child("import sys; sys.stdin.read()") as supernode:
        looks = list[float]()

        def sleep(seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 3:
                supernode.kill()
                supernode.wait()

        monkeypatch.setattr(node.time, "sleep", sleep)
        node.serve(foreign.getsockname()[1], b"secret", asker, supernode, lambda text: None)
        assert len(looks) == 3
        assert not was_called(foreign)


def test_a_listener_is_known_by_its_process():
    with child(_LISTENER, port := _free_port()) as mine, child("import sys; sys.stdin.read()") as other:
        assert mine.stdout is not None
        assert mine.stdout.readline() == b"listening\n"
        assert is_listener(mine.pid, port)
        assert not is_listener(other.pid, port)
        assert not is_listener(mine.pid, _free_port())
        mine.kill()
        mine.wait()
        assert not is_listener(mine.pid, port)


def test_no_proxy_is_between_the_executor_and_its_supernode(monkeypatch: pytest.MonkeyPatch):
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("NO_PROXY", "a.example")
        with contextlib.closing(_runtime(f"127.0.0.1:{_free_port()}")) as runtime, pytest.raises(httpx.ConnectError):
            runtime.AcquireTask(AcquireTaskRequest())
        assert not was_called(proxy)
        assert node.os.environ["no_proxy"] == node.os.environ["NO_PROXY"] == "a.example,127.0.0.1"


@contextlib.contextmanager
def answering(headers: dict[str, str], body: bytes) -> Iterator[str]:
    """A server that answers every request with these headers, and no more than these bytes."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


PACKED = gzip.compress(bytes(2**20))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("headers", "body"), [
    ({"Content-Length": str(2**40)}, b""),
    ({"Transfer-Encoding": "chunked"}, b"5\r\n"),
    ({"Content-Length": str(len(PACKED)), "Content-Encoding": "gzip"}, PACKED),
])  # fmt: skip
def test_a_message_is_not_read_if_it_is_large_or_compressed(headers: dict[str, str], body: bytes):
    with (
        answering(headers, body) as address,
        contextlib.closing(_runtime(address)) as runtime,
        pytest.raises(FederationError, match="at most"),
    ):
        runtime.PullObject(PullObjectRequest())


def test_the_parts_of_a_message_are_not_too_large_together():
    bounded, half = node.SizeLimit(), {"Content-Length": str(MAX_MESSAGE_BYTES // 2 + 1)}
    part = httpx.Response(200, headers=half, request=httpx.Request("POST", "http://a/v1/runtime/pull-object"))
    bounded(part)
    with pytest.raises(FederationError, match="in all"):
        bounded(part)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path, APP)
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hostile_app_finds_nothing_at_a_pinned_node_and_the_round_with_ours_ends(federation: Federation):
    root, data = federation.root, people(2)
    for name, mine in clients(data):
        np.savez(root / f"{name}.npz", images=mine.images[:, 0], labels=mine.labels)
    (first, second), loot = data.person_ids, root / "loot"
    loot.mkdir()
    federation.link()
    federation.pinned_node("pinned", first, trust="untrusted-server", cap=500.0)
    federation.node("plain", second, trust="untrusted-server", cap=500.0)
    federation.hold(HOSTILE, loot=str(loot))
    wait(lambda: (loot / "done").exists(), "the hostile server")
    found = {path.name for path in loot.iterdir()}
    assert f"stolen {second}.npz" in found  # the attack works where a SuperNode runs what it is sent
    assert (loot / f"stolen {second}.npz").read_bytes() == (root / f"{second}.npz").read_bytes()
    assert f"stolen {first}.npz" not in found
    assert len([name for name in found if name.startswith("was here")]) == 1  # it ran at the plain node alone
    (reason,) = (path.read_text() for path in loot.iterdir() if path.name.startswith("refused"))
    assert "the app that this site installed" in reason
    home = home_of(root / "state/pinned", first)
    assert sorted(path.name for path in home.iterdir()) == ["client.json"]  # no ledger, no key: nothing was done
    federation.kill("plain")
    federation.pinned_node("second", second, trust="untrusted-server", cap=500.0)
    plan = make_federated_plan(Facts.of(data), trust="untrusted-server", epsilon=500, steps=20)
    folder = create_run(root / "RUN", plan, data.person_ids, 900.0)
    federation.hold()
    wait(lambda: folder.is_finished and not folder.key.exists(), "the end of the run")
    for name, client in (("pinned", first), ("second", second)):
        (ledger,) = home_of(root / "state" / name, client).glob("*/ledger.jsonl")
        assert len(read_ledger(ledger)[1]) == 1
    counted = json.loads((folder.private / "closed.json").read_text())["answers"]
    assert set(counted) == {first, second}
    (kept,) = home.glob("*/answer.bin")
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == counted[first]  # 64-bit numbers, as they are digested
