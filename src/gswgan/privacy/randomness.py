"""Named random streams: every purpose and step has its own, derived by a keyed hash; and exact samplers.

A run's secret streams (noise, participation, batches) come from a 256-bit key of operating-system entropy, its public
streams (partition, initial weights, latent codes) from the seed. Noise and participation are read from SHAKE-256, so
they are as hard to predict as the key; batches use a Philox generator that is seeded by the stream. The samplers are
our own, because those of numpy and torch draw floating-point approximations, whose low-order bits leak.

The context (the digest of the plan) is part of every stream, so one key never gives the same noise under two plans;
`load_key` refuses another context.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from gswgan.privacy.errors import PrivacyError, StorageError
from gswgan.privacy.ownership import check_marked, marked
from gswgan.privacy.storage import erase_file, read_private, write_durably

KEY_BYTES = 32
KEY_VERSION = 2

PUBLIC = "public"
"""The context of streams from a public seed; that of a key is the digest of a plan."""

FLOAT_SLACK = 2.0**-48
"""A bound on the error of a quantile relative to 1 + |z| (2^-51 for scipy's inverse normal distribution)."""

DRAWS_PER_THREAD = 2**12
"""The smallest number of draws for which a thread pays. Each draw is rounded by itself: threads change no result."""

Quantile: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""The point beyond which a symmetric law of scale 1 has a probability p <= 1/2."""


class Streams:
    """Independent random streams, one per (purpose, index...), under a secret and a context."""

    def __init__(self, secret: bytes, context: str) -> None:
        if len(secret) != KEY_BYTES:
            raise PrivacyError("key length", len(secret), f"{KEY_BYTES} bytes")
        self._secret = secret
        self.context = context

    @classmethod
    def public(cls, seed: int) -> Streams:
        """Return streams that follow from a public seed: partition, initial weights, latent codes."""
        return cls(hashlib.blake2b(f"public seed {seed}".encode(), digest_size=KEY_BYTES).digest(), PUBLIC)

    def check_secret(self) -> None:
        """Refuse the streams of a public seed."""
        if self.context == PUBLIC:
            raise PrivacyError("streams", "of the public seed", "those of a run's key: coins and noise are secret")

    def seed(self, purpose: str, *index: int | str) -> bytes:
        """Return 256 bits for this purpose and index."""
        name = json.dumps([self.context, purpose, *index]).encode()
        return hashlib.blake2b(name, key=self._secret, digest_size=KEY_BYTES).digest()

    def words(self, count: int, purpose: str, *index: int | str) -> NDArray[np.uint64]:
        """Return `count` uniform 64-bit words from SHAKE-256."""
        raw = hashlib.shake_256(self.seed(purpose, *index)).digest(8 * count)
        return np.frombuffer(raw, dtype="<u8")

    def gaussian(self, shape: tuple[int, ...], purpose: str, *index: int | str) -> NDArray[np.float64]:
        """Return standard normal draws in float64 by inverting the distribution function. Not for privacy noise.

        One bit is the sign; the other 63 give the tail probability p = (k + 1/2) 2^-64 < 1/2, so |z| reaches
        9.2 (probability 2^-64) and the tail is resolved to full double precision: p itself is a double, and
        small p is never the difference of two numbers near 1.
        """
        words = self.words(int(np.prod(shape)), purpose, *index)
        tail = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64
        sign = 1.0 - 2.0 * (words & np.uint64(1)).astype(np.float64)
        return np.asarray(sign * ndtri(tail), dtype=np.float64).reshape(shape)

    def rounded_gaussian(
        self, shape: tuple[int, ...], scale: float, purpose: str, *index: int | str
    ) -> NDArray[np.int64]:
        """Return real normal draws of standard deviation `scale`, each rounded to the nearest integer, exactly.

        A draw is given by the bits of its tail probability p in (0, 1/2): a word gives the sign and the first 63
        bits, so k 2^-64 <= p < (k + 1) 2^-64. Where both ends round to the same integer, that is the answer, and
        float64 suffices to see it. Where they do not (a few in a million draws, and the far tail), 128 more bits
        are drawn and decide. So the integers follow the law of a rounded real Gaussian, without holes or a cut.
        """
        return self._rounded(_gaussian_quantile, shape, scale, purpose, *index)

    def rounded_laplace(
        self, shape: tuple[int, ...], scale: float, purpose: str, *index: int | str
    ) -> NDArray[np.int64]:
        """Return real Laplace draws of this scale, each rounded to the nearest integer, as `rounded_gaussian` does."""
        return self._rounded(_laplace_quantile, shape, scale, purpose, *index)

    def _rounded(
        self, quantile: Quantile, shape: tuple[int, ...], scale: float, purpose: str, *index: int | str
    ) -> NDArray[np.int64]:
        words = self.words(math.prod(shape), purpose, *index)
        threads = min(len(words) // DRAWS_PER_THREAD, (os.cpu_count() or 1) // 2)
        if threads <= 1:
            found = [_round_part(words, quantile, scale)]
        else:
            with ThreadPoolExecutor(threads) as pool:
                found = list(pool.map(_round_part, np.array_split(words, threads), repeat(quantile), repeat(scale)))
        size = np.concatenate([sizes for sizes, _ in found])
        for place in np.flatnonzero(np.concatenate([open_ for _, open_ in found])):
            more = self.words(2, purpose, *index, "more bits", int(place))
            tail = (int(words[place] >> np.uint64(1)) << 128) | (int(more[0]) << 64) | int(more[1])
            size[place] = _nearest_integer(quantile, tail, scale)
        return np.where(words & np.uint64(1), -size, size).reshape(shape)

    def bernoulli(self, count: int, rate: float, purpose: str, *index: int | str) -> NDArray[np.bool_]:
        """Return independent coins with probability at most `rate` (and within 2^-53 of it)."""
        if rate >= 1:
            return np.ones(count, dtype=np.bool_)
        threshold = int(rate * 2.0**64)  # rounds towards zero: never more often than stated
        return np.asarray(self.words(count, purpose, *index) < np.uint64(threshold))

    def generator(self, purpose: str, *index: int | str) -> np.random.Generator:
        """Return a numpy generator, for what needs no cryptographic strength."""
        key = np.frombuffer(self.seed(purpose, *index)[:16], dtype="<u8")
        return np.random.Generator(np.random.Philox(key=key))

    def integer(self, purpose: str, *index: int | str) -> int:
        """Return a 63-bit seed for a library's own generator."""
        return int.from_bytes(self.seed(purpose, *index)[:8], "little") >> 1


class BatchStreams:
    """The part of a key's streams that critics get: it chooses the records of their minibatches.

    Participation and noise are drawn by the mechanism alone. The streams of a public seed are refused.
    """

    def __init__(self, streams: Streams) -> None:
        streams.check_secret()
        self._streams = streams

    def generator(self, *index: int | str) -> np.random.Generator:
        """Return a numpy generator for this index."""
        return self._streams.generator("batch", *index)


def _round_part(
    words: NDArray[np.uint64], quantile: Quantile, scale: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the rounded absolute value of each draw, and where 63 bits do not determine it."""
    position = (words >> np.uint64(1)).astype(np.float64)
    near, far = quantile((position + 1.0) * 2.0**-64), quantile(position * 2.0**-64)
    low = np.rint(scale * (near - FLOAT_SLACK * (1 + near)))
    high = np.rint(scale * (far + FLOAT_SLACK * (1 + far)))
    return np.where(low == high, low, 0).astype(np.int64), low != high


def _gaussian_quantile(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the point beyond which a standard normal has the probability p."""
    return np.asarray(-ndtri(p))


def _laplace_quantile(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the point beyond which a Laplace of scale 1 has the probability p <= 1/2."""
    with np.errstate(divide="ignore"):  # p = 0 gives infinity
        return np.asarray(-np.log(2.0 * p))


def _nearest_integer(quantile: Quantile, tail: int, scale: float) -> int:
    """Return the integer nearest to scale z, where z has the tail probability (tail + 1/2) 2^-192."""
    import mpmath  # on the rare path only

    with mpmath.workdps(100):
        p = (mpmath.mpf(tail) + 0.5) / mpmath.mpf(2) ** 192
        gaussian = quantile is _gaussian_quantile
        z = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * p) if gaussian else -mpmath.log(2 * p)
        return int(mpmath.nint(scale * z))


def create_key(path: Path, context: str, *, secret: bytes | None = None) -> Streams:
    """Create a key in `path` (mode 0600), bound to a context; refuse to overwrite one."""
    if path.exists():
        raise PrivacyError("key file", str(path), "a path where no key is yet", "A key serves one run only.")
    secret = os.urandom(KEY_BYTES) if secret is None else secret
    content = marked("key", {"format_version": KEY_VERSION, "context": context, "secret": secret.hex()})
    write_durably(path, json.dumps(content).encode(), mode=0o600)
    return Streams(secret, context)


def load_key(path: Path, context: str) -> Streams:
    """Read the key of a run that is resumed.

    A key of another plan is refused, since its noise would be used twice, and so is a key that another user made, who
    would know the noise.
    """
    try:
        content: dict[str, Any] = json.loads(read_private(path, 2**16))
        secret, bound = bytes.fromhex(content["secret"]), content["context"]
        if content["format_version"] not in (1, KEY_VERSION) or not isinstance(bound, str):
            raise ValueError("another format")
    except StorageError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as wrong:
        raise PrivacyError("key file", str(path), "the key of this run", "Start a new run.") from wrong
    check_marked("key", content, path)
    if bound != context:
        raise PrivacyError("key", bound, f"a key made for plan {context}", "One key serves one plan: start a new run.")
    return Streams(secret, context)


def erase_key(path: Path) -> None:
    """Overwrite and remove the key when the run has ended, so that nobody can subtract the noise afterwards."""
    erase_file(path)
