"""The data sets known by name: their files, from a folder, the cache or the network, by checksum.

The download is our own and not pooch's, which has no limit on the size of an answer and waits without end for a name
server that does not answer.
"""

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
MAX_DOWNLOAD_BYTES = 256 * 2**20
_CHUNK = 2**16


@dataclass(frozen=True, kw_only=True)
class Published:
    """A data set of a few files, each with its SHA-256."""

    name: str
    folder: str  # under GSWGAN_DATA
    mirrors: tuple[str, ...]
    sha256: dict[str, str]
    class_names: tuple[str, ...]

    def file(self, filename: str) -> Path:
        """The verified file: from $GSWGAN_DATA, else from the cache, else downloaded to the cache."""
        given = os.environ.get("GSWGAN_DATA")
        places = [Path(given) / self.folder / filename] if given else []
        places.append(cache_folder(self.name) / filename)
        for path in places:
            if path.is_file():
                _verify(path, self.sha256[filename])
                return path
        return self._download(filename, places[-1])

    def _download(self, filename: str, target: Path) -> Path:
        problems = [] if self.mirrors else ["a file that no mirror has"]
        for mirror in self.mirrors:
            try:
                _fetch(mirror + filename, target, self.sha256[filename])
                return target
            except (OSError, http.client.HTTPException) as error:  # no network, no answer in time, no room
                problems.append(f"{mirror}: {error or type(error).__name__}")
        files = ", ".join(f"{self.folder}/{name}" for name in self.sha256)
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


def _verify(path: Path, sha256: str) -> None:
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(str(path), error.strerror, "a file that can be read", "Check its permissions.") from error
    if found != sha256:
        raise DataError(
            str(path), f"sha256 {found}", f"sha256 {sha256} of the published file",
            "Remove the file (it is downloaded again), or put the published one in its place.",
        )  # fmt: skip


def _fetch(url: str, target: Path, sha256: str) -> None:
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
                size, digest = 0, hashlib.sha256()
                while piece := answer.read(_CHUNK):
                    size += len(piece)
                    if size > MAX_DOWNLOAD_BYTES:
                        raise OSError(f"more than {MAX_DOWNLOAD_BYTES} bytes")
                    out.write(piece)
                    digest.update(piece)
                    progress.advance(task, len(piece))
            if digest.hexdigest() != sha256:
                raise OSError(f"sent another file than the published one (sha256 {digest.hexdigest()}, not {sha256})")
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
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

MNIST = Published(
    name="mnist",
    folder="mnist",
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    sha256={
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    class_names=_DIGITS,
)

FASHION_MNIST = Published(
    name="fashion-mnist",
    folder="fashion_mnist",
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    sha256={
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    class_names=_CLOTHES,
)

QMNIST_WRITERS = Published(
    name="qmnist-writers",
    folder="qmnist_writers",
    mirrors=("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",),
    sha256={
        "qmnist-train-labels-idx2-int.gz": "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
        "qmnist-test-labels-idx2-int.gz": "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
    },
    class_names=_DIGITS,
)

FEMNIST_WRITERS = Published(
    name="femnist-writers", folder="femnist_writers", mirrors=(),
    sha256={"femnist-100-writers.npz": "b4622ce99ba078aed475a5e92f95eda1afa0bcedb36b51a86fb593aa7e3ec578"},
    class_names=(*_DIGITS, *_LETTERS, *(letter.lower() for letter in _LETTERS)),
)  # fmt: skip
