"""Folders of images with a folder for each person, in either order of the levels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_image_folder import classes_folder, save

from gswgan.data import load_data
from gswgan.errors import DataError


def client_folders(root: Path) -> Path:
    """Two clients with both classes; bea has no dog."""
    for client in ("ann", "bea"):
        for name in ("cat", "dog"):
            (root / client / name).mkdir(parents=True)
    save(root / "ann" / "dog" / "1.png", 10)
    save(root / "ann" / "cat" / "2.png", 20)
    save(root / "ann" / "dog" / "3.png", 30)
    save(root / "bea" / "cat" / "1.png", 40)
    return root


def test_persons_with_classes(tmp_path: Path) -> None:
    data = load_data(client_folders(tmp_path / "people"), layout="person/class/")
    assert data.images[:, 0, 0, 0].tolist() == [10, 20, 30, 40]
    assert data.labels.tolist() == [1, 0, 1, 0]
    assert data.persons.tolist() == [0, 0, 0, 1]
    assert (data.class_names, data.person_ids, data.name) == (("cat", "dog"), ("ann", "bea"), "folders of persons")
    assert data.reading.layout == "person/class/"


def test_classes_of_persons(tmp_path: Path) -> None:
    """The same name in two classes is one person; a changed class moves nobody."""
    root = client_folders(tmp_path / "people")
    data = load_data(root, layout="class/person/")
    assert (data.class_names, data.person_ids) == (("ann", "bea"), ("cat", "dog"))
    assert data.images[:, 0, 0, 0].tolist() == [40, 20, 10, 30]
    assert (data.labels.tolist(), data.persons.tolist()) == ([1, 0, 0, 0], [0, 0, 1, 1])
    (root / "ann" / "dog" / "3.png").rename(root / "bea" / "dog" / "3.png")
    after = load_data(root, layout="class/person/")
    assert np.array_equal(data.images, after.images)
    assert np.flatnonzero(data.labels != after.labels).tolist() == [3]
    assert after.persons.tolist() == data.persons.tolist()
    (root / "ann" / "eve").mkdir()  # a person without images is on the list
    assert load_data(root, layout="class/person/").person_ids == ("cat", "dog", "eve")
    save(root / "ann" / "9.png", 1)
    with pytest.raises(DataError, match=r"9\.png.*beside the folders of persons"):
        load_data(root, layout="class/person/")


def test_classes_whose_folders_mean_nothing(tmp_path: Path) -> None:
    root = client_folders(tmp_path / "people")
    data = load_data(root, layout="class/")
    assert (data.n, data.class_names, data.persons) == (4, ("ann", "bea"), None)
    assert data.images[:, 0, 0, 0].tolist() == [40, 20, 10, 30]  # cat/1, cat/2, dog/1, dog/3
    save(root / "bea" / "cat" / "2.png", 60)
    assert load_data(root, layout="class/").repeated_names == ("cat/2.png",)


def test_two_levels_are_not_guessed(tmp_path: Path) -> None:
    root = client_folders(tmp_path / "people")
    (root / "ann" / "emu").mkdir()
    both = "2 classes of 3 persons .class/person/., 2 persons with 3 classes .person/class/., or 2 classes"
    with pytest.raises(DataError, match=rf"^layout = None: expected .*{both}.*--layout"):
        load_data(root)
    with pytest.raises(DataError, match=r"layout = 'person': expected one of class/, class/person/, person/class/"):
        load_data(root, layout="person")
    one = classes_folder(tmp_path / "one")
    assert np.array_equal(load_data(one, layout="class/").images, load_data(one).images)
    for layout in ("class/person/", "person/class/"):
        with pytest.raises(DataError, match=r"layout.*one level of folders"):
            load_data(one, layout=layout)
    with pytest.raises(DataError, match=r"layout.*no folders"):
        load_data(one / "cat", layout="class/")
    with pytest.raises(DataError, match=r"layout.*no folder of images"):
        load_data("digits", layout="class/")


def test_one_person_does_not_name_the_classes_of_the_others(tmp_path: Path) -> None:
    root = client_folders(tmp_path)
    (root / "bea" / "ant").mkdir()
    with pytest.raises(DataError, match=r"bea.*ant, cat, dog.*empty folder"):
        load_data(root, layout="person/class/")
    (root / "ann" / "ant").mkdir()
    assert load_data(root, layout="person/class/").class_names == ("ant", "cat", "dog")
    (root / "carl").mkdir()
    with pytest.raises(DataError, match=r"carl.*none"):
        load_data(root, layout="person/class/")


def test_unclear_folders_of_persons(tmp_path: Path) -> None:
    layout = "person/class/"
    root = client_folders(tmp_path / "a")
    (root / "ann" / "dog" / "deeper").mkdir()
    with pytest.raises(DataError, match="deeper"):
        load_data(root, layout=layout)
    root = client_folders(tmp_path / "b")
    save(root / "bea" / "x.png", 1)
    with pytest.raises(DataError, match=r"bea.*images beside"):
        load_data(root, layout=layout)
    root = client_folders(tmp_path / "c")
    save(root / "bea" / "dog" / "2.png", 1, size=(12, 12))
    with pytest.raises(DataError, match=r"2\.png.*--image-size"):
        load_data(root, layout=layout)
    assert load_data(root, image_size=8, layout=layout).n == 5
    for part in ("train", "Test", "val"):
        with pytest.raises(DataError, match="subfolders are the classes"):
            load_data(classes_folder(tmp_path / part / part).parent)
    for client in ("x", "y"):
        (tmp_path / "d" / client / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="no images"):
        load_data(tmp_path / "d", layout=layout)
    with pytest.raises(DataError, match="--group-by"):
        load_data(client_folders(tmp_path / "e"), layout=layout, group_by="ids.csv")
    with pytest.raises(DataError, match="path of the test set"):
        load_data(tmp_path / "e", split="test")
