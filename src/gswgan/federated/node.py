"""A site's node: Flower carries the messages, and only code that the site installed answers them.

A SuperNode by itself runs whatever app (a FAB, a zip of Python files) the SuperLink sends. Here it is started with
`--isolation process`, which leaves the running of apps to an executor of the site's own, and this process is that
executor. It takes the messages from the SuperNode's Runtime API on the loopback interface and answers them with the
client that is installed here (client.py). The app that came with them is never unpacked and never imported; it is
compared with the one that the installed gswgan has, and if it is another one the message is refused.

The SuperNode knows neither where the records are nor who the client is: both are in the site's file, which this
process alone reads.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.error import Error
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from gswgan.errors import FederationError
from gswgan.federated.client import Client
from gswgan.federated.flower import RECORD
from gswgan.federated.listener import HOST, check_known, is_listener, reach_directly

APP = Path(__file__).parent / "app"
POLL_SECONDS = 1.0
"""Between two looks for a message."""

ATTEMPTS, RESTART_SECONDS = 30, 10.0
"""How often a SuperNode that ends with exit code 1 is started, and how long after."""

MAX_MESSAGE_BYTES = 2**28
"""Of a message with the app that came with it. Fakes of 10,000 classes at 64 x 64 in colour are 250 MB."""

_SUPERNODE = "from flwr.supernode.cli import flower_supernode; flower_supernode()"


def built(app: Path) -> bytes:
    """The app in this folder as Flower sends it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a library that Flower uses
        return build_fab_from_disk(app)


def check_app(content: bytes) -> None:
    """Raise a FederationError if this is not, byte for byte, the app of the gswgan that is installed here."""
    found, ours = (hashlib.sha256(one).hexdigest() for one in (content, built(APP)))
    if found != ours:
        raise FederationError(
            "app", found[:16], f"{ours[:16]}, the app that this site installed: it runs no other",
            'Run the app of the same version: flwr run "$(gswgan federate app)".',
        )  # fmt: skip


def reply_message(message: Message, app: bytes, client: Client, note: Callable[[str], None]) -> Message:
    """The client's answer to a message that came with this app. Nothing of the app is run, whatever it is."""
    try:
        check_app(app)
    except FederationError as wrong:
        note(f"refused: {wrong}")
        return Message(Error(code=ErrorCode.INVALID_FAB, reason=str(wrong)), reply_to=message)
    fields = message.content.config_records.get(RECORD, ConfigRecord()) if message.has_content() else ConfigRecord()
    said: dict[str, Any] = {**client.reply(dict(fields))}
    note("refused; the reason is in the client's log" if "refused" in said else "answered")
    return Message(RecordDict({RECORD: ConfigRecord(said)}), reply_to=message)


def run_node(config: Mapping[str, Any], client: Client, *, note: Callable[[str], None] = print) -> None:
    """Start the SuperNode that the site's file describes and answer its messages, until it ends for good."""
    check_known()
    with tempfile.TemporaryDirectory(prefix="gswgan-node-") as place:  # mode 0700
        secret = Path(place) / "secret"
        secret.touch(mode=0o600)
        secret.write_bytes(secrets.token_bytes(32))
        for attempt in range(1, ATTEMPTS + 1):
            port = _free_port()
            with _supernode(_command(config, port, secret)) as process:
                serve(port, secret.read_bytes(), client, process, note)
            if process.returncode != 1 or attempt == ATTEMPTS:
                break
            note(
                f"the SuperNode has ended (see above); it is started again in {RESTART_SECONDS:g} s ({attempt} of "
                f"{ATTEMPTS}). A SuperLink accepts a node that was killed again after about a minute."
            )
            time.sleep(RESTART_SECONDS)
        raise FederationError("supernode", f"exit code {process.returncode}", "a SuperNode that runs", "See above.")


def serve(
    port: int, secret: bytes, client: Client, supernode: subprocess.Popen[bytes], note: Callable[[str], None]
) -> None:
    """Answer one message after the other while the SuperNode runs. Nobody else on its port gets a request."""
    address, only = f"{HOST}:{port}", _OnlyTo(supernode, port)
    runtime = _runtime(address, _signed(secret), only)
    kinds = [TaskType.CLIENT_APP, TaskType.AGENT_APP]  # of the other kinds a SuperNode has none
    while supernode.poll() is None:
        try:
            found = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=kinds))
            if found.HasField("task") and found.token:
                _answer(_runtime(address, RuntimeTokenHttpInterceptor(found.token), only), client, note)
                continue
        except httpx.TransportError:  # it is starting, or ending
            pass
        except Exception as wrong:  # a message that cannot be read, or that is no longer wanted: the next one may be
            note(f"a message was dropped: {wrong!r}")
        time.sleep(POLL_SECONDS)


class _OnlyTo:
    """Lets a request pass only while the SuperNode that we started is the listener on its port."""

    def __init__(self, supernode: subprocess.Popen[bytes], port: int) -> None:
        self._supernode, self._port = supernode, port

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        """Called by Flower's client before every request; the last of its interceptors."""
        if self._supernode.poll() is not None or not is_listener(self._supernode.pid, self._port):
            raise httpx.ConnectError(f"the SuperNode does not listen on port {self._port}")
        return call_next(context)


class SizeLimit:
    """Lets an answer of the SuperNode be read only if it, with all before it, has a bounded size as it is sent."""

    def __init__(self) -> None:
        self._bytes = 0

    def __call__(self, response: httpx.Response) -> None:
        """Called by httpx when the headers are there and nothing of the body has been read."""
        size, encoding = response.headers.get("content-length", ""), response.headers.get("content-encoding")
        if response.url.path.endswith("/acquire-task"):
            self._bytes = 0  # the next message
        self._bytes += int(size) if size.isdigit() else MAX_MESSAGE_BYTES + 1
        if encoding is not None or self._bytes > MAX_MESSAGE_BYTES:
            raise FederationError(
                "message", f"{size or 'unknown'} bytes, encoding {encoding}",
                f"at most {MAX_MESSAGE_BYTES} bytes in all, not compressed", "Ask the operator for a smaller plan.",
            )  # fmt: skip


def _answer(runtime: RuntimeHttpClient, client: Client, note: Callable[[str], None]) -> None:
    """Take the message of one task and send the reply."""

    def beat() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            runtime.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True

    alive = HeartbeatSender(beat)
    alive.start()
    try:
        message, context, _, fab = pull_task_input(runtime)
        push_message(runtime, reply_message(message, fab.content, client, note), context)
        push_task_output(runtime, context, SubStatus.COMPLETED, "")
    finally:
        alive.stop()
        runtime.close()


def _signed(secret: bytes) -> SuperExecAuthHttpInterceptor:
    """Shows that we are the executor whom the SuperNode was told of: without it no message is handed out."""
    methods = frozenset({"/flwr.proto.Runtime/AcquireTask"})
    return SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods)


def _runtime(address: str, *interceptors: Any) -> RuntimeHttpClient:
    reach_directly()
    made = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # the loopback interface
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), *interceptors],
    )  # without Flower's retries, which end the process when a message has been withdrawn
    made._client.headers["accept-encoding"] = "identity"
    made._client.event_hooks = {"response": [SizeLimit()]}
    return made


def _command(config: Mapping[str, Any], port: int, secret: Path) -> list[str]:
    """The SuperNode, with its executor outside of it and nothing of the site's in its arguments."""
    if "superlink" not in config:
        raise FederationError("site", "no superlink", "host:port of the SuperLink in the site's configuration")
    command = [
        sys.executable, "-c", _SUPERNODE, "--isolation", "process", "--superlink", str(config["superlink"]),
        "--host", HOST, "--port", str(port), "--superexec-auth-secret-file", str(secret),
    ]  # fmt: skip
    options = {"root-certificates": "--root-certificates", "node-key": "--auth-supernode-private-key"}
    for name, option in options.items():
        if name in config:
            command += [option, str(config[name])]
    return [*command, "--insecure"] if config.get("insecure") is True else command


@contextlib.contextmanager
def _supernode(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A SuperNode that ends when this process does, however it ends."""
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    prctl, parent_death = ctypes.CDLL(None).prctl, 1
    process = subprocess.Popen(command, env=environment, preexec_fn=lambda: prctl(parent_death, signal.SIGTERM))
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
