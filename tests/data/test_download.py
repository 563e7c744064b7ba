"""Published files: found, verified, downloaded aside, or refused with what to do. No network is used."""

from __future__ import annotations

import dataclasses
import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gswgan.data import download
from gswgan.data.download import FASHION_MNIST, FEMNIST_WRITERS, MNIST, QMNIST_WRITERS, Published, cache_folder
from gswgan.errors import DataError

GOOD = b"the published bytes" * 10_000
NAME = "train-images-idx3-ubyte.gz"


class Handler(BaseHTTPRequestHandler):
    answers: dict[str, bytes] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        body = self.answers.get(self.path)
        self.send_response(200 if body is not None else 404)
        length = len(body or b"") + (7 if self.path.startswith("/short") else 0)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "TIMEOUT", 600.0)  # a busy machine is not a silent mirror
    answers = {f"/good/{NAME}": GOOD, f"/other/{NAME}": GOOD[:-1], f"/short/{NAME}": GOOD[:1000]}
    monkeypatch.setattr(Handler, "answers", answers)
    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GSWGAN_DATA", raising=False)
    return tmp_path / "cache" / "gswgan" / "mnist"


def made(*mirrors: str) -> Published:
    return dataclasses.replace(MNIST, mirrors=mirrors, sha256={NAME: hashlib.sha256(GOOD).hexdigest()})


def test_download_verifies_and_caches(server: str, cache: Path) -> None:
    path = made(f"{server}/good/").file(NAME)
    assert path == cache / NAME
    assert path.read_bytes() == GOOD
    assert list(cache.iterdir()) == [path]
    assert made("http://127.0.0.1:9/none/").file(NAME) == path  # from the cache now


@pytest.mark.parametrize("bad", ["absent", "other", "short"])
def test_the_next_mirror_is_tried(server: str, bad: str, cache: Path) -> None:
    assert made(f"{server}/{bad}/", f"{server}/good/").file(NAME).read_bytes() == GOOD


@pytest.mark.parametrize("bad", ["absent", "other", "short"])
def test_a_bad_answer_leaves_nothing_behind(server: str, bad: str, cache: Path) -> None:
    with pytest.raises(DataError, match="GSWGAN_DATA"):
        made(f"{server}/{bad}/").file(NAME)
    assert list(cache.iterdir()) == []


def test_too_long_an_answer_is_cut(server: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "MAX_DOWNLOAD_BYTES", 1000)
    with pytest.raises(DataError, match="more than 1000 bytes"):
        made(f"{server}/good/").file(NAME)
    assert list(cache.iterdir()) == []


def test_a_given_folder_comes_first_and_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSWGAN_DATA", str(tmp_path))
    given = tmp_path / "mnist" / NAME
    given.parent.mkdir()
    given.write_bytes(GOOD)
    assert made().file(NAME) == given
    given.write_bytes(GOOD + b"!")
    with pytest.raises(DataError, match=r"sha256 .*published"):
        made().file(NAME)


def test_a_damaged_cache_is_found(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / NAME).write_bytes(b"half")
    with pytest.raises(DataError, match="Remove the file"):
        made().file(NAME)


def test_offline_says_what_to_do(cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        dataclasses.replace(MNIST, mirrors=("http://127.0.0.1:9/",)).file(NAME)
    for part in ("Set GSWGAN_DATA", "mnist/train-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1", str(cache)):
        assert part in caught.value.todo


def test_a_silent_mirror_or_name_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(DataError):
        made(f"http://127.0.0.1:{silent.getsockname()[1]}/").file(NAME)
    release = threading.Event()
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: release.wait())
    with pytest.raises(DataError, match=r"no answer in 0\.2 seconds"):
        made("http://name.invalid/").file(NAME)
    release.set()


def test_the_timeout_is_a_few_seconds() -> None:
    assert download.TIMEOUT <= 5


def test_a_file_that_no_mirror_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"no mirror has.*femnist_writers/femnist-100-writers\.npz"):
        FEMNIST_WRITERS.file("femnist-100-writers.npz")


def test_cache_folder_without_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder("mnist") == tmp_path / ".cache" / "gswgan" / "mnist"


@pytest.mark.parametrize(
    ("published", "files", "classes"),
    [(MNIST, 4, 10), (FASHION_MNIST, 4, 10), (QMNIST_WRITERS, 2, 10), (FEMNIST_WRITERS, 1, 62)],
)
def test_tables_are_whole(published: Published, files: int, classes: int) -> None:
    assert len(published.sha256) == len(set(published.sha256.values())) == files
    assert all(len(digest) == 64 for digest in published.sha256.values())
    assert len(set(published.class_names)) == classes
    assert all(mirror.endswith("/") for mirror in published.mirrors)
