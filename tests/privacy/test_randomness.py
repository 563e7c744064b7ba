from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binomtest, kstest

from gswgan.privacy import Streams, randomness
from gswgan.privacy.errors import PrivacyError
from gswgan.privacy.randomness import create_key, erase_key, load_key
from gswgan.privacy.storage import write_durably

SECRET = bytes(range(32))
names = st.tuples(st.text(max_size=6), st.lists(st.one_of(st.integers(0, 99), st.text(max_size=6)), max_size=3))


@given(names, names)
def test_two_names_never_share_a_stream(one: tuple[str, list[int | str]], two: tuple[str, list[int | str]]) -> None:
    streams = Streams(SECRET, "plan")
    assert (streams.seed(one[0], *one[1]) == streams.seed(two[0], *two[1])) == (one == two)


def test_every_part_of_a_name_counts() -> None:
    seeds = [
        Streams(SECRET, "plan").seed("noise", "step 1", 0),
        Streams(SECRET, "other plan").seed("noise", "step 1", 0),
        Streams(SECRET[::-1], "plan").seed("noise", "step 1", 0),
        Streams(SECRET, "plan").seed("participation", "step 1", 0),
        Streams(SECRET, "plan").seed("noise", "step 1", 1),
        Streams(SECRET, "plan").seed("noise", "step 1", "0"),
        Streams(SECRET, "plan").seed("noise", "step 1"),
        Streams(SECRET, "plan").seed("noise", "step", "1", 0),
        Streams.public(0).seed("noise", "step 1", 0),
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(len(seed) == 32 for seed in seeds)


def test_streams_are_repeatable_and_uniform() -> None:
    words = Streams(SECRET, "plan").words(20000, "noise", 1)
    assert (words == Streams(SECRET, "plan").words(20000, "noise", 1)).all()
    assert kstest(words / 2.0**64, "uniform").pvalue > 1e-3
    assert len(set(words.tolist())) == len(words)
    bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert (np.abs(bits - 0.5) < 5 * 0.5 / np.sqrt(20000)).all()


def test_a_longer_request_starts_with_the_shorter_one() -> None:
    streams = Streams(SECRET, "plan")
    assert (streams.words(100, "a")[:10] == streams.words(10, "a")).all()
    assert len(streams.words(0, "a")) == 0


def test_derived_generators_differ_by_name() -> None:
    streams = Streams(SECRET, "plan")
    draws = [tuple(streams.generator("batch", step).integers(0, 2**62, 4)) for step in range(50)]
    assert len(set(draws)) == 50
    assert streams.generator("batch", 7).random() == streams.generator("batch", 7).random()
    assert all(0 <= streams.integer("init", k) < 2**63 for k in range(50))
    assert len({streams.integer("init", k) for k in range(50)}) == 50


def coins_have_rate(coins: NDArray[np.bool_], rate: float) -> None:
    assert binomtest(int(coins.sum()), len(coins), rate).pvalue > 1e-4


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.5])
def test_coins_have_their_rate_and_not_another(rate: float) -> None:
    streams = Streams(SECRET, "plan")
    coins = np.concatenate([streams.bernoulli(1000, rate, "participation", step) for step in range(100)])
    coins_have_rate(coins, rate)
    for wrong in (rate * 0.9, rate * 1.1):
        with pytest.raises(AssertionError):
            coins_have_rate(coins, wrong)


def test_coins_are_independent_of_each_other_and_of_other_steps() -> None:
    streams = Streams(SECRET, "plan")
    coins = np.stack([streams.bernoulli(400, 0.5, "participation", step) for step in range(400)]).astype(float) - 0.5
    bound = 5 / np.sqrt(coins.size)
    assert abs((coins[:, 1:] * coins[:, :-1]).mean() * 4) < bound
    assert abs((coins[1:] * coins[:-1]).mean() * 4) < bound
    counts = np.stack([streams.bernoulli(400, 0.5, "participation", step) for step in range(400)]).sum(axis=1)
    assert 60 < counts.var() < 145  # binomial: 100; a fixed number of participants would give 0


@pytest.mark.parametrize("rate", [1e-6, 0.1, 1 / 3, 0.5, 1 - 2.0**-53])
def test_a_coin_falls_with_at_most_its_rate(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = int(mpmath.floor(mpmath.mpf(rate) * 2**64))  # so many words must say yes, and no more
    words = np.array([0, edge - 1, edge, 2**64 - 1], dtype=np.uint64)
    monkeypatch.setattr(Streams, "words", lambda *_: words)
    assert Streams(SECRET, "plan").bernoulli(4, rate, "participation").tolist() == [True, True, False, False]


def test_rate_one_is_everyone() -> None:
    assert Streams(SECRET, "plan").bernoulli(1000, 1.0, "participation", 0).all()


@pytest.mark.parametrize("scale", [0.3, 2.0**26, 2.0**34, 2.0**44])
def test_noise_is_a_real_gaussian_rounded_exactly(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against 60 digits: ordinary words, the far tail, the middle, and both signs."""
    streams, original = Streams(SECRET, "plan"), Streams.words
    special = [k << 1 for k in (0, 1, 2, 3, 1000, 2**20 + 1, 2**40, 2**62, 2**63 - 2, 2**63 - 1)]
    first = np.array([*special, *(w | 1 for w in special), *original(streams, 300, "test")], dtype=np.uint64)

    def words(self: Streams, count: int, *name: int | str) -> NDArray[np.uint64]:
        return first if "more bits" not in name else original(self, count, *name)

    monkeypatch.setattr(Streams, "words", words)
    found = streams.rounded_gaussian((len(first),), scale, "noise", 1)
    for place, (word, integer) in enumerate(zip(first.tolist(), found.tolist())):
        high, low = original(streams, 2, "noise", 1, "more bits", place).tolist()
        with mpmath.workdps(90):
            tail = (mpmath.mpf((word >> 1) * 2**128 + high * 2**64 + low) + 0.5) / mpmath.mpf(2) ** 192

            def upper(x: mpmath.mpf) -> mpmath.mpf:
                return mpmath.erfc(x / scale / mpmath.sqrt(2)) / 2

            size = abs(integer)
            assert upper(mpmath.mpf(size) + 0.5) < tail, "the draw lies below the cell's upper end"
            assert size == 0 or tail <= upper(mpmath.mpf(size) - 0.5), "and above its lower end"
        assert integer == 0 or (integer < 0) == bool(word & 1)


def test_threads_change_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not where 63 bits do not decide: a large slack leaves many draws open."""
    monkeypatch.setattr(randomness, "FLOAT_SLACK", 2.0**-36)
    found = []
    for cores in (1, 6, 7):
        monkeypatch.setattr(randomness.os, "cpu_count", lambda cores=cores: cores)
        found.append(Streams.public(0).rounded_gaussian((4 * randomness.DRAWS_PER_THREAD + 3,), 2.0**24, "noise"))
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()
    assert found[0].std() == pytest.approx(2.0**24, rel=0.02)


def test_a_key_is_fresh_private_and_not_overwritten(tmp_path: Path) -> None:
    keys = [create_key(tmp_path / f"key{i}", "plan") for i in range(3)]
    assert len({k.seed("noise") for k in keys}) == 3
    assert all(stat.S_IMODE((tmp_path / f"key{i}").stat().st_mode) == 0o600 for i in range(3))
    with pytest.raises(PrivacyError):
        create_key(tmp_path / "key0", "plan")
    assert load_key(tmp_path / "key0", "plan").seed("noise") == keys[0].seed("noise")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["key0", "key1", "key2"]


def test_a_key_serves_one_plan(tmp_path: Path) -> None:
    create_key(tmp_path / "key", "plan")
    with pytest.raises(PrivacyError):
        load_key(tmp_path / "key", "another plan")


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"secret": "zz", "context": "plan"}'])
def test_a_damaged_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(PrivacyError):
        load_key(tmp_path / "key", "plan")


def test_a_short_key_is_refused() -> None:
    with pytest.raises(PrivacyError):
        Streams(b"short", "plan")


def test_an_erased_key_is_gone(tmp_path: Path) -> None:
    create_key(tmp_path / "key", "plan")
    erase_key(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []
    erase_key(tmp_path / "key")  # twice does no harm
    with pytest.raises(PrivacyError):
        load_key(tmp_path / "key", "plan")


def test_an_erased_key_is_overwritten_in_place(tmp_path: Path) -> None:
    create_key(tmp_path / "key", "plan", secret=SECRET)
    os.link(tmp_path / "key", tmp_path / "same blocks")
    erase_key(tmp_path / "key")
    assert SECRET.hex().encode() not in (tmp_path / "same blocks").read_bytes()


def test_a_durable_write_replaces_the_whole_file(tmp_path: Path) -> None:
    write_durably(tmp_path / "file", b"a long first content")
    write_durably(tmp_path / "file", b"short")
    assert (tmp_path / "file").read_bytes() == b"short"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_public_streams_depend_on_the_seed_alone() -> None:
    seeds = [Streams.public(s).seed("partition") for s in range(20)]
    assert len(set(seeds)) == 20
    assert all(a != b for a, b in itertools.combinations(seeds, 2))
    assert Streams.public(3).seed("partition") == seeds[3]
