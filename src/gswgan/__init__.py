"""gswgan: differentially private image synthesis with an epsilon one can check.

>>> from gswgan import GSWGAN
>>> model = GSWGAN(epsilon=10, delta=1e-5).fit(images, labels, classes=10)
>>> model.privacy            # epsilon with delta, neighbours, unit, observer, sampling
>>> synthetic, y = model.sample(60_000)
>>> model.save("release")    # and later: gswgan.load("release").sample(100)

Layers: a module imports only from lower lines and, within a line, from what stands further right. Imports inside
functions count. tests/test_architecture.py reads this table.

    cli
    api
    benchmark > audit > release > report > federated > evaluation
    run
    methods
    plan
    critics
    generators > data
    terminal > errors > ranges
    privacy
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gswgan.api import GSWGAN, load, resume, retrain
    from gswgan.data import ImageData, load_data, make_image_data
    from gswgan.privacy import Accountant, PrivacyCost

__version__ = "0.1.0"
__all__ = [
    "GSWGAN", "Accountant", "ImageData", "PrivacyCost", "load", "load_data", "make_image_data", "resume", "retrain",
]  # fmt: skip

_HOME = {
    "GSWGAN": "gswgan.api",
    "load": "gswgan.api",
    "resume": "gswgan.api",
    "retrain": "gswgan.api",
    "ImageData": "gswgan.data",
    "load_data": "gswgan.data",
    "make_image_data": "gswgan.data",
    "Accountant": "gswgan.privacy",
    "PrivacyCost": "gswgan.privacy",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `gswgan --help` and `import gswgan` need not wait for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'gswgan' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
