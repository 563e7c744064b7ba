"""Names and links that lead outside, and pickles, in files of data."""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from test_hostile_files import IMAGES, WHOLE, npy, npz, put, read_persons, zipped

from gswgan.data import load_data
from gswgan.data.persons import read_ids
from gswgan.errors import DataError


@pytest.mark.parametrize("name", ["../images.npy", "/tmp/images.npy", "..\\images.npy", "x/../../images.npy"])
def test_a_name_that_leads_outside_is_only_a_name(name: str) -> None:
    """Archives are read, never unpacked; `put` looks whether anything was written."""
    with put("a.npz", zipped({name: npy(IMAGES)})) as path, pytest.raises(DataError, match="no array `images`"):
        load_data(path)
    with put("a.npz", zipped({name: npy(IMAGES), "images.npy": npy(IMAGES)})) as path:
        assert load_data(path).n == 4


@pytest.mark.parametrize(
    "name", ["d/train-images-idx3-ubyte", "d/train-images-idx3-ubyte.gz", "p/a.png", "p/cat/a.png"]
)
def test_a_link_is_not_followed_out_of_the_folder(name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(WHOLE.get(name, WHOLE["p/a.png"]))
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    os.symlink(secret, path)
    with pytest.raises(DataError, match="a symbolic link"):
        load_data(tmp_path / name.split("/")[0])


class Trap:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".txt", ".csv", ".parquet", "-idx1-int"])
@pytest.mark.parametrize("form", ["bare", "npy", "npz", "zipped pickle"])
def test_nothing_is_ever_unpickled(suffix: str, form: str, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    trap = np.array([Trap(sprung)] * 4, dtype=object)
    content = {
        "bare": pickle.dumps(Trap(sprung)), "npy": npy(trap), "npz": npz(images=trap, persons=trap),
        "zipped pickle": zipped({"images.npy": pickle.dumps(Trap(sprung)), "data.pkl": pickle.dumps(Trap(sprung))}),
    }[form]  # fmt: skip
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    for read in (load_data, read_persons, read_ids):
        with contextlib.suppress(DataError):
            read(path)
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung)))  # noqa: S301  it would have been seen
    assert sprung.exists()
