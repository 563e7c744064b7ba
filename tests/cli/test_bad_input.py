"""Every bad input gets one message that says what, what instead and what to do; exit code 2; and nothing is lost.

The tables have what is made in an empty folder, what is called there, and the field that the message names. HERE is the
folder, RUN a finished run, LONG a name of 300 characters.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import pickle
import re
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bad_inputs import BAD, GOOD, IMAGES, LABELS, PLAN, PNG, Files, npz

from conftest import tiny_images
from gswgan import GSWGAN
from gswgan.cli import main
from gswgan.errors import GswganWarning

GOLDEN = {
    "too few records for the epsilon":
        'records = 24: expected at least 71 at this epsilon, or no class could be told from the noise. Use '
        'more records or a larger --epsilon.',
    "a pixel above 1":
        "images = 'a pixel of record 3 outside [0, 1]': expected floats from 0 to 1. Divide by the largest "
        'possible value (255 for bytes), not by the largest one found in the data, or state the range of the '
        'values with --pixel-range LOW:HIGH (in Python pixel_range=(low, high)).',
    "labels without a number of classes":
        'classes = None: expected the number of classes: labels came without it, and it is never taken from '
        'the data. Pass classes=N (--classes N); it is a public fact, whether or not every class occurs.',
    "an npz of pickled objects":
        "HERE/a.npz: images = 'dtype object': expected numbers or strings, never pickled objects. Save arrays"
        ' of numbers or strings with np.savez (or np.save).',
    "an npz that claims 10^12 images":
        "HERE/a.npz = 'a header for shape (1000000000000, 8, 8)': expected what the file has room for: "
        '64000000000000 bytes are claimed, at most 0 can be there. Copy the file again.',
    "a link that leaves the folder":
        "HERE/pictures/b.png = 'a symbolic link': expected files inside HERE/pictures. Copy the file into the folder.",
    "epsilon nan":
        'epsilon = nan: expected a number above 0, at most 10000. Pass --epsilon 10, for example; less is '
        'more private.',
    "a plan that was edited":
        "plan.digest = 'HEX...': expected HEX..., as its content has. It was damaged or edited. Copy it "
        'again, or make a new one with `gswgan train --save-plan PLAN`.',
    "samples of no run":
        "run = 'nowhere': expected a run folder or its release folder; no such file or folder. "
        "`gswgan train --out RUN` makes one.",
    "samples into a file that exists": "out = 's.npz': expected a path that does not exist yet. Choose another one.",
}  # fmt: skip
"""A few whole messages; of all others the field is checked, and that they have their four parts."""


def make(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir()
        elif isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)


def call(line: str, *, run: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    words = [re.sub(r"\bRUN\b", str(run), word).replace("LONG", "x" * 300) for word in shlex.split(line)]
    monkeypatch.setattr(sys, "argv", ["gswgan", *words])
    try:
        main.run()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def state(*folders: Path) -> dict[str, str]:
    """Everything in the folders: names, kinds and contents."""
    return {
        str(path): "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if not path.is_symlink()
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    data = tiny_images()
    GSWGAN(steps=2, epsilon=50, device="cpu").fit(data.images[:, 0], data.labels, classes=3, out=out)
    return out


def check_message(text: str, field: str, folder: Path, run: Path) -> str:
    """One message of name, value, what was expected and what to do, that begins with the field."""
    text = text.replace(str(folder), "HERE").replace(str(run), "RUN").replace("x" * 300, "LONG")
    assert "Traceback" not in text
    assert text.startswith(f"gswgan: {field} = "), text
    assert re.fullmatch(r"(?s)gswgan: .+ = .{1,200}: expected .+\.( [A-Z`].+\.)?\n", text), text
    return re.sub(r"\b[0-9a-f]{12}\.\.\.", "HEX...", text.removeprefix("gswgan: ").rstrip("\n"))


@pytest.mark.parametrize(("title", "files", "line", "field"), BAD, ids=[row[0] for row in BAD])
def test_a_bad_input_gets_its_message_and_nothing_is_lost(
    title: str, files: Files, line: str, field: str, tmp_path: Path, run: Path, monkeypatch, capsys
) -> None:
    make(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    before = state(tmp_path, run)
    capsys.readouterr()
    assert call(line, run=run, monkeypatch=monkeypatch) == 2
    message = check_message(capsys.readouterr().err, field, tmp_path, run)
    assert message == GOLDEN.get(title, message)
    assert re.search(r"\. [A-Z`][^.]", message), "what to do"
    assert state(tmp_path, run) == before


def test_the_table_is_long_and_its_rows_differ() -> None:
    assert len(BAD) >= 100
    assert len({(str(sorted(files)), line, title) for title, files, line, _ in BAD}) == len(BAD)
    assert len({title for title, *_ in BAD}) == len(BAD)


def test_the_console_script_says_the_same(tmp_path: Path) -> None:
    title, files, line, field = next(row for row in BAD if row[0] == "a plan that was edited")
    make(tmp_path, files)
    script = "from gswgan.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", script, *shlex.split(line)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert check_message(done.stderr, field, tmp_path, Path("RUN")) == GOLDEN[title]
    assert done.stdout == ""
    assert set(os.listdir(tmp_path)) == {name.split("/")[0] for name in files}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("train --epsilon ten", "--epsilon"), ("train --steps 1.5", "--steps"), ("train --critic 3", "--critic"),
        ("sample RUN -n many", "-n"), ("sample", "Missing argument"), ("trian", "trian"), ("train digits", "digits"),
    ],
)  # fmt: skip
def test_a_word_that_is_not_understood(line: str, named: str, run: Path, monkeypatch, capsys) -> None:
    assert call(line, run=run, monkeypatch=monkeypatch) == 2
    output = capsys.readouterr()
    assert named in output.err
    assert "Traceback" not in output.err
    assert "--help" in output.err
    assert output.out == ""


# --- a release that was damaged on its way


def edited(**values: object):
    return lambda content: json.dumps({**json.loads(content), **values}).encode()


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


BROKEN = [
    ("model.json", half, "sample RUN", "file"),
    ("model.json", edited(labels=[7]), "sample RUN", "labels"),
    ("model.json", edited(labels=None), "sample RUN", "labels"),
    ("model.json", edited(plan={}), "privacy explain RUN", "plan.format_version"),
    ("generator.safetensors", half, "export RUN out", "generator"),
    ("generator.safetensors", lambda content: pickle.dumps(content), "sample RUN", "generator"),
    ("embedding.safetensors", half, "sample RUN --labels released", "embedding"),
    ("privacy.json", edited(epsilon=1.0), "privacy account RUN", "RUN/privacy.json: epsilon and delta"),
    ("privacy.json", edited(epsilon=None), "privacy explain RUN", "RUN/privacy.json: epsilon and delta"),
    ("privacy.json", edited(epsilon=60.0, delta=1e-9), "privacy explain RUN", "RUN/privacy.json: epsilon and delta"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "damage", "line", "field"), BROKEN)
def test_a_damaged_release_is_refused(
    name: str, damage, line: str, field: str, tmp_path: Path, run: Path, monkeypatch, capsys
) -> None:
    release = tmp_path / "release"
    shutil.copytree(run / "release", release)
    (release / name).write_bytes(damage((release / name).read_bytes()))
    monkeypatch.chdir(tmp_path)
    before = state(tmp_path)
    assert call(line, run=release, monkeypatch=monkeypatch) == 2
    check_message(capsys.readouterr().err, field, tmp_path, Path("HERE/release"))
    assert state(tmp_path) == before


# --- a machine that refuses


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A real error of the operating system in the middle of a write, as a full disk gives."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


TRAIN = "train --data a.npz --classes 3 --epsilon 20 --steps 2"


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("sample RUN --out s.npz", "out"), ("export RUN s.csv", "out"), ("export RUN pictures -n 3", "out"),
        (f"{TRAIN} --save-plan plan.json", "plan"), (f"{TRAIN} --out out", "out"), (TRAIN, "out"),
    ],
)  # fmt: skip
def test_no_space(line: str, field: str, tmp_path: Path, run: Path, monkeypatch, capsys) -> None:
    make(tmp_path, {"a.npz": GOOD})
    monkeypatch.chdir(tmp_path)
    with files_of_at_most(50):
        assert call(line, run=run, monkeypatch=monkeypatch) == 2
    assert "File too large" in check_message(capsys.readouterr().err, field, tmp_path, run)
    assert list(state(tmp_path)) == [str(tmp_path / "a.npz")]


@pytest.mark.parametrize(
    ("refused", "line", "field"),
    [
        ("HERE", f"{TRAIN} --out deep/out", "out"), ("HERE", TRAIN, "out"), ("HERE/a.npz", TRAIN, "HERE/a.npz"),
        ("HERE/pictures", "train --data pictures", "HERE/pictures"),
        ("HERE/plan.json", "train --plan plan.json", "plan"),
    ],
)  # fmt: skip
def test_no_permission(refused: str, line: str, field: str, tmp_path: Path, run: Path, monkeypatch, capsys) -> None:
    """The operating system is stood in for: whoever runs the tests may be allowed everything."""
    make(tmp_path, {"a.npz": GOOD, "pictures/a.png": PNG, "plan.json": PLAN})
    monkeypatch.chdir(tmp_path)
    before, path = state(tmp_path), Path(refused.replace("HERE", str(tmp_path)))

    def guarded(function):
        def call(name, *rest, **options):
            if not isinstance(name, int) and Path(os.fsdecode(name)).absolute() == path:  # no descriptor
                raise PermissionError(errno.EACCES, "Permission denied", str(name))
            return function(name, *rest, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda name, mode: Path(name) != path)
        for module, name in ((io, "open"), (os, "open"), (os, "listdir"), (os, "scandir")):
            patch.setattr(module, name, guarded(getattr(module, name)))
        assert call(line, run=run, monkeypatch=monkeypatch) == 2
    check_message(capsys.readouterr().err, field, tmp_path, run)
    assert state(tmp_path) == before


# --- allowed, but hardly meant


@pytest.mark.parametrize(
    ("labels", "options", "expected"),
    [
        (LABELS, "--classes 3 --delta 0.05 --allow-large-delta", ["delta", "epsilon"]),
        (LABELS * 0 + 1, "--classes 3", ["epsilon", "labels"]),
        (LABELS * 0, "--classes 1 --delta 0.05 --allow-large-delta --epsilon 20", ["delta", "labels"]),
        (LABELS, "--classes 3 --delta 0.04", ["delta", "epsilon"]),
        (LABELS, "--classes 3 --delta 0.001 --epsilon 20", []),
    ],
)
def test_a_warning_is_said_and_the_run_goes_on(
    labels: np.ndarray, options: str, expected: list[str], tmp_path: Path, run: Path, monkeypatch, capsys
) -> None:
    make(tmp_path, {"a.npz": npz(images=IMAGES, labels=labels)})
    monkeypatch.chdir(tmp_path)
    line = f"train --data a.npz --epsilon 50 --steps 2 --out out --device cpu {options}"
    assert call(line, run=run, monkeypatch=monkeypatch) == 0
    assert re.findall(r"^warning: (\w+) = .+: expected .+\.$", capsys.readouterr().err, re.MULTILINE) == expected
    assert (tmp_path / "out/release/generator.safetensors").exists()


def test_the_same_warnings_in_python() -> None:
    model = GSWGAN(epsilon=50, delta=0.05, steps=2, device="cpu", allow_large_delta=True)
    with pytest.warns(GswganWarning) as caught:
        model.fit(IMAGES, LABELS * 0, classes=3)
    assert [str(warning.message).split(" = ")[0] for warning in caught] == ["delta", "epsilon", "labels"]
    assert caught[0].filename == __file__
    assert model.sample(3)[0].shape == (3, 8, 8)
