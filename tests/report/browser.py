"""A headless Chromium, spoken to over a pipe: no driver, no network, no package."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = (
    "chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
    "chrome-headless-shell", "headless_shell",
)  # fmt: skip
PLACES = ("/usr/bin", "/usr/local/bin", "/usr/lib/chromium", "/opt/google/chrome", "/snap/bin")
"""Where packages put it, for those whose PATH does not say so."""

INSTALL = "no Chromium or Chrome here: as root, apt install chromium (Debian) or apt install chromium-browser (Ubuntu)"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip

LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 20) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands from descriptor 3 and answers on 4."""


def find_browser() -> str | None:
    """The path of a Chromium, if there is one: as `apt` installs it, or anywhere on the PATH."""
    places = os.pathsep.join([os.environ.get("PATH", ""), *PLACES])
    return next((found for name in NAMES if (found := shutil.which(name, path=places))), None)


class Page:
    """One tab: the DevTools protocol, of which a dozen methods are enough."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._numbers, self._buffer, self._session = itertools.count(1), b"", ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._in, 2**16)
            if not more:
                raise RuntimeError("the browser is gone")
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def open(self, path: Path, *, width: int, height: int = 900, scheme: str = "light", scale: float = 1) -> None:
        """Show a file at this width, and wait until it has loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=width < 600)  # fmt: skip
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def requests(self) -> list[str]:
        """What was asked for since `open`, data URIs left out."""
        asked = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """Console messages, exceptions and log entries since `open`."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"])[:500] for event in self.events if event.get("method") in kinds]

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, path: Path) -> None:
        """The page as it is printed."""
        found = self.call("Page.printToPDF", printBackground=False, paperWidth=8.27, paperHeight=11.69)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser(executable: str) -> Iterator[Page]:
    """A Chromium with an empty profile, and one tab in it."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        pipes = [str(to_read), str(from_write)]
        command = [sys.executable, "-c", LAUNCH, *pipes, executable, *FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            command, pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Page(to_write, from_read)
        finally:
            os.close(to_write)
            process.terminate()
            process.wait()
            os.close(from_read)
