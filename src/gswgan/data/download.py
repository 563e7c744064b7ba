"""The data sets known by name: their files, from a folder, the cache or the network, by checksum."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gswgan.errors import DataError
from gswgan.privacy.storage import make_folder

TIMEOUT = 5.0  # seconds to connect to a mirror, and for every read from it
_MAX_DOWNLOAD = 256 * 2**20
_CHUNK = 2**16


@dataclass(frozen=True, kw_only=True)
class Published:
    """A data set of a few files, each with its md5."""

    name: str
    folder: str  # under GSWGAN_DATA
    mirrors: tuple[str, ...]
    md5: dict[str, str]
    class_names: tuple[str, ...]

    def file(self, filename: str) -> Path:
        """The verified file: from $GSWGAN_DATA, else from the cache, else downloaded to the cache."""
        given = os.environ.get("GSWGAN_DATA")
        places = [Path(given) / self.folder / filename] if given else []
        places.append(cache_folder(self.name) / filename)
        for path in places:
            if path.is_file():
                _verify(path, self.md5[filename])
                return path
        return self._download(filename, places[-1])

    def _download(self, filename: str, target: Path) -> Path:
        problems = [] if self.mirrors else ["a file that no mirror has"]
        for mirror in self.mirrors:
            try:
                _fetch(mirror + filename, target, self.md5[filename])
                return target
            except (OSError, http.client.HTTPException) as error:  # no network, no answer in time, no room
                problems.append(f"{mirror}: {error or type(error).__name__}")
        files = ", ".join(f"{self.folder}/{name}" for name in self.md5)
        raise DataError(
            self.name,
            "; ".join(problems),
            f"{filename} in $GSWGAN_DATA/{self.folder}, in {target.parent}, or a network",
            f"Set GSWGAN_DATA to a folder that has {files}, or put these files into {target.parent}. "
            "`digits` needs no download.",
        )


def cache_folder(name: str) -> Path:
    """Where downloads are kept: $XDG_CACHE_HOME/gswgan/<name>, by default under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gswgan" / name


def _verify(path: Path, md5: str) -> None:
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise DataError(str(path), error.strerror, "a file that can be read", "Check its permissions.") from error
    if found != md5:
        raise DataError(
            str(path),
            f"md5 {found}",
            f"md5 {md5} of the published file",
            "Remove the file (it is downloaded again), or put the published one in its place.",
        )


def _fetch(url: str, target: Path, md5: str) -> None:
    """Download beside `target`, verify, then move into place: a half file is never seen under its name."""
    from rich.console import Console
    from rich.progress import Progress

    make_folder(target.parent)
    with _open(url) as answer, Progress(console=Console(stderr=True), transient=True) as progress:
        length = answer.headers.get("Content-Length", "")
        task = progress.add_task(target.name, total=int(length) if length.isdigit() else None)
        handle, aside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                size, digest = 0, hashlib.md5(usedforsecurity=False)
                while piece := answer.read(_CHUNK):
                    size += len(piece)
                    if size > _MAX_DOWNLOAD:
                        raise OSError(f"more than {_MAX_DOWNLOAD} bytes")
                    out.write(piece)
                    digest.update(piece)
                    progress.advance(task, len(piece))
            if digest.hexdigest() != md5:
                raise OSError(f"sent another file than the published one (md5 {digest.hexdigest()}, not {md5})")
            os.replace(aside, target)
        except BaseException:
            os.unlink(aside)
            raise


def _open(url: str) -> Any:
    """`urlopen` that gives up after TIMEOUT even while the host's name is looked up (no socket yet)."""
    result: list[Any] = []

    def work() -> None:
        try:
            result.append(urllib.request.urlopen(url, timeout=TIMEOUT))
        except urllib.error.HTTPError as error:  # an answer as well: it holds the connection
            error.close()
            result.append(error)
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    if not result:
        raise TimeoutError(f"no answer in {TIMEOUT:g} seconds")
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]


_DIGITS = tuple("0123456789")
_LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

MNIST = Published(
    name="mnist",
    folder="mnist",
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    md5={
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    class_names=_DIGITS,
)

FASHION_MNIST = Published(
    name="fashion-mnist",
    folder="fashion_mnist",
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    md5={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    class_names=_CLOTHES,
)

QMNIST_WRITERS = Published(
    name="qmnist-writers",
    folder="qmnist_writers",
    mirrors=("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",),
    md5={
        "qmnist-train-labels-idx2-int.gz": "0058f8dd561b90ffdd0f734c6a30e5e4",
        "qmnist-test-labels-idx2-int.gz": "5b5b05890a5e13444e108efe57b788aa",
    },
    class_names=_DIGITS,
)

FEMNIST_WRITERS = Published(
    name="femnist-writers",
    folder="femnist_writers",
    mirrors=(),
    md5={"femnist-100-writers.npz": "5e4a733319ef052f8bba3cc287ad5d26"},
    class_names=(*_DIGITS, *_LETTERS, *(letter.lower() for letter in _LETTERS)),
)
