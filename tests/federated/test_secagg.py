"""Why Flower's secure aggregation is not offered (docs/federated.md): what its masks and its rounding are."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")


def test_the_masks_have_32_bits():
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    seed = np.random.default_rng(0).bytes(32)
    folded = np.zeros(8, "<u4")
    folded[0] = np.bitwise_xor.reduce(np.frombuffer(seed, "<u4"))
    one, other = (pseudo_rand_gen(key, 2**32, [(1000,)])[0] for key in (seed, folded.tobytes()))
    assert seed != folded.tobytes()
    assert np.array_equal(one, other)
    twister = np.random.RandomState(int(folded[0]))
    assert np.array_equal(one, twister.randint(0, 2**32 - 1, (1000,), dtype=np.int64))


def test_integers_would_pass_its_quantisation_unchanged():
    from flwr.common.secure_aggregation.quantization import dequantize, quantize

    sent = np.random.default_rng(0).integers(-(2**21), 2**21, 10_000)
    (there,) = quantize([sent.astype(np.float64)], float(2**21), 2**22)
    assert np.array_equal(there - 2**21, sent)
    (back,) = dequantize([there], float(2**21), 2**22)
    assert np.array_equal(back, sent)
