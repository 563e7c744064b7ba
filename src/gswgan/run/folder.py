"""The run folder: `release/` may be published, `private/` never leaves (mode 0700)."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.critics.kernel.encoder import ENCODER
from gswgan.data import ImageData, ImageStream
from gswgan.data.public import PublicImages
from gswgan.errors import RunError, StorageError, path_problem
from gswgan.methods import read_plan
from gswgan.plan.context import RunContext
from gswgan.plan.plan import Plan
from gswgan.privacy import Ledger, Streams
from gswgan.privacy.ledger import Entry
from gswgan.privacy.ownership import check_marked, marked
from gswgan.privacy.randomness import create_key, erase_key, load_key
from gswgan.privacy.storage import check_own, check_private, locked, make_folder, read_file, write_durably
from gswgan.run.checkpoint import Checkpoint
from gswgan.run.public_images import check_public, keep_public, kept_public

MAX_BYTES = 2**32
"""Of one file of a release that is copied into another: sums over 10,000 classes and 32,768 features."""


@dataclass(frozen=True, kw_only=True)
class Entered:
    """A run that is in its budget."""

    journal: Path
    """What it and its copies have released. In place of a journal in the run folder."""

    before_repeat: Callable[[Entry], None]
    """To be asked before a release is repeated."""


class RunFolder:
    """Where everything of a run is."""

    def __init__(self, root: Path, plan: Plan | None = None) -> None:
        self.root, self._plan = root, plan
        self.release, self.private = root / "release", root / "private"
        self.model, self.privacy = self.release / "model.json", self.release / "privacy.json"
        self.generator, self.embedding = self.release / "generator.safetensors", self.release / "embedding.safetensors"
        self.first_generator = self.release / "first_generator.safetensors"  # of an earlier stage
        self.encoder = self.release / ENCODER
        self.ledger, self.card = self.release / "ledger.jsonl", self.release / "card.md"
        self.samples, self.federation = self.release / "samples.png", self.release / "federation.json"
        self.key, self.journal = self.private / "key.json", self.private / "journal.jsonl"
        self.checkpoint, self.metrics = self.private / "checkpoint.safetensors", self.private / "metrics.jsonl"
        self.data = self.private / "data.json"
        self.source, self.warm_start = self.private / "source.json", self.private / "warm_start.safetensors"
        self.owner = self.private / "owner.json"  # that this user made the run
        self.sums, self.left_out = self.private / "sums.safetensors", self.private / "left_out.json"
        self.public_images = self.private / "public_images.safetensors"
        self.encoder_state = self.private / "encoder.safetensors"  # while it is trained
        self.budget, self.rounds = self.private / "budget.json", self.private / "round.json"  # of clients that answer

    @classmethod
    def create(
        cls,
        root: Path,
        plan: Plan,
        *,
        source: dict[str, Any] | None = None,
        origin: RunFolder | None = None,
        budget: Path | None = None,
        public: PublicImages | None = None,
    ) -> RunFolder:
        """A new run with its plan. An existing folder is never written over.

        `source`: where the data was read from. `origin`: a run whose embedding is used again, with what it cost.
        `budget`: the budget file that the run will enter; then the key is drawn now, so that a copy or a backup of the
        folder is the same run.
        `public`: the images that the plan states to be public. The plan is written last: a folder without it is no run
        yet, and may be made again.
        """
        if origin is None:  # otherwise its encoder is there, and nothing is trained with them again
            check_public(plan, public)
        folder = cls(root, plan)
        taken = RunError("out", str(root), "a folder that does not exist yet", "Choose another --out, or --resume it.")
        is_new = not root.exists()
        try:
            if not folder.is_vacant():
                raise taken
            names = ("embedding", "encoder", "ledger", "privacy") if origin is not None else ()
            found = {getattr(folder, name): getattr(origin, name) for name in names}
            copied = {
                to: read_file(path, MAX_BYTES) for to, path in found.items() if to.name != ENCODER or path.exists()
            }
            for new in (root, folder.release):
                make_folder(new)
            make_folder(folder.private, private=True)
            with folder.locked():
                if not folder.is_vacant():  # another process was quicker
                    raise taken
                if source is not None:
                    folder.remember_source(source)
                folder.budget.unlink(missing_ok=True)  # of a folder that was begun before
                erase_key(folder.key)
                if budget is not None:
                    write_json(folder.budget, {"budget": str(budget.resolve())})
                write_json(folder.owner, marked("run", {"plan": plan.digest(), "budgeted": budget is not None}))
                if budget is not None:
                    folder.secret(plan)
                if public is not None:
                    keep_public(folder.public_images, public)
                for path, content in copied.items():
                    write_durably(path, content)
                write_json(folder.model, {"method": plan.method, "plan": plan.to_json()})
        except OSError as wrong:
            if is_new:
                shutil.rmtree(root, ignore_errors=True)
            raise RunError("out", str(root), f"a folder that can be written ({wrong.strerror})") from wrong
        return folder

    def is_vacant(self) -> bool:
        """Whether nothing is here, or only the first files of a run that died before it had its plan."""
        if not self.root.is_dir():
            return not self.root.exists()
        begun = {self.release, self.private, self.private / "lock", self.source, self.budget, self.owner}
        begun |= {self.public_images}
        begun |= {self.key} if self.owner.exists() else set()  # which comes before it
        inside = itertools.chain(self.release.glob("*"), self.private.glob("*"))
        return all(path in begun for path in self.root.iterdir()) and all(
            path in begun or path.suffix == ".part" for path in inside
        )

    def plan(self) -> Plan:
        """The plan of the run. It is read once."""
        if self._plan is None:
            self._plan = read_plan(read_json(self.model, "the model.json of a run").get("plan"))
        return self._plan

    @property
    def is_finished(self) -> bool:
        """Whether the generator has been published."""
        return self.privacy.exists() and self.generator.exists()

    def secret(self, plan: Plan) -> Streams:
        """The run's secret streams; the key is drawn when the run first asks."""
        self.check_made_here(plan)
        if self.key.exists():
            return load_key(self.key, plan.digest())
        fixed = None
        if plan.insecure_reproducible:
            fixed = hashlib.blake2b(f"insecure {plan.seed}".encode(), digest_size=32).digest()
        return create_key(self.key, plan.digest(), secret=fixed)

    def context(
        self, plan: Plan, *, secret: Streams, public: Streams, entered: Entered | None = None, **more: Any
    ) -> RunContext:
        """What a critic of the run is made with; `more` are other fields of `RunContext`."""

        def open_ledger() -> Ledger:
            return Ledger(
                self.ledger,
                observer=plan.cost.observer,
                context=plan.digest(),
                journal=self.journal if entered is None else entered.journal,
                before_repeat=(lambda entry: None) if entered is None else entered.before_repeat,
            )

        return RunContext(
            public=public,
            secret=secret,
            open_ledger=open_ledger,
            embedding=self.embedding,
            public_images=lambda: kept_public(self.public_images, plan),
            store=lambda name: Checkpoint(self.private / f"{name}.safetensors", plan.digest()),
            write_private=lambda name, content: write_json(self.private / f"{name}.json", content),
            **more,
        )

    def bind_data(self, data: ImageData | ImageStream, secret: Streams) -> None:
        """Remember, keyed, which data this run is about; refuse to go on with other data."""
        digest = data_digest(data, secret.seed("data"))
        if not self.data.exists():
            write_json(self.data, {"digest": digest})
        elif read_json(self.data, "data.json").get("digest") != digest:
            raise RunError(
                "data", "not the data that this run began with", "the same records in the same order",
                "Noise of one run must not be used for two data sets: start a new run.",
            )  # fmt: skip

    def remember_source(self, source: dict[str, Any]) -> None:
        """Where the data was read from, so that a resumed run finds it again. Private: it may name a path."""
        write_json(self.source, marked("source of the data", source))

    def remembered_source(self) -> dict[str, Any]:
        """What `remember_source` was told. What somebody else wrote there is not followed."""
        source = read_json(self.source, "the source of the run's data (or pass --data)")
        source = {key: value for key, value in source.items() if key != "format_version"}
        return check_marked("source of the data", source, self.source, "Or pass --data.")

    def check_made_here(self, plan: Plan) -> None:
        """Refuse a run that this user did not make: whoever did may know its key, and with it the noise."""
        known = read_json(self.owner, "the owner.json of a run") if self.owner.exists() else {}
        known = {key: value for key, value in known.items() if key != "format_version"}
        made = check_marked("run", known, self.root)
        if made.get("plan") != plan.digest():
            raise RunError("run", str(self.root), "the plan that it was made with", "Start a new run.")
        if made.get("budgeted") and not self.budget.exists():  # it would be trained without being counted
            raise RunError(
                "file", str(self.budget), "the name of the budget that this run is counted in", "Restore it."
            )

    def check_ours(self) -> None:
        """Refuse folders of another user, or in which others can put or read what they should not."""
        check_own(self.root.resolve())
        check_own(self.release)
        check_private(self.private)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time, in a folder of this user."""
        with contextlib.ExitStack() as held:
            try:
                self.check_ours()
                held.enter_context(locked(self.private / "lock", wait=False))
            except BlockingIOError as wrong:
                raise RunError("run", str(self.root), "a run that no other process is working on") from wrong
            except OSError as wrong:
                raise RunError("run", str(self.root), f"a run folder that can be written ({wrong.strerror})") from wrong
            yield


def data_digest(data: ImageData | ImageStream, key: bytes) -> str:
    """Of images, labels and persons as they were read, keyed: nobody without the key can try data against it.

    Of data that stays in its files, the files are digested, with their classes, and how they are read.
    """
    state = hashlib.blake2b(key=key)
    if isinstance(data, ImageStream):
        state.update(repr(data.reader).encode())
        for path, label in data.files.paths():
            state.update(f"{path.stat().st_size} {label} ".encode())
            with path.open("rb") as file:
                while piece := file.read(2**20):
                    state.update(piece)
        return state.hexdigest()
    for array in (data.images, data.labels, data.persons):
        state.update(b"none" if array is None else np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """A JSON file with its format version, durably."""
    write_durably(path, (json.dumps({"format_version": 1, **content}, indent=1) + "\n").encode())


_WHOLE = "Check that the folder is whole, or copy it again."


def read_json(path: Path, expected: str) -> dict[str, Any]:
    """A JSON file of ours, or a RunError that says what was expected there."""
    try:
        content = json.loads(read_file(path))
    except StorageError:
        raise
    except (OSError, ValueError, RecursionError) as wrong:
        raise RunError("file", str(path), expected + path_problem(path), _WHOLE) from wrong
    if not isinstance(content, dict) or content.get("format_version") != 1:
        raise RunError("file", str(path), f"{expected} with format_version 1", _WHOLE)
    return content


MANIFEST = "manifest.json"
"""In a bundle of `gswgan release`: it names every file that belongs to the bundle."""


def is_bundle(folder: Path) -> bool:
    """Whether a folder is a bundle of `gswgan release`, to which nothing can be added."""
    return (folder / MANIFEST).exists() and (folder / "model.json").exists()


def find_release(path: Path) -> RunFolder:
    """The run at `path`, which may be the run folder or a copy of its release folder alone."""
    if (path / "release" / "model.json").exists():
        return RunFolder(path)
    if (path / "model.json").exists():
        folder = RunFolder(path.parent)
        for name in ("model", "privacy", "generator", "embedding", "ledger", "card", "samples", "federation",
                     "encoder", "first_generator"):  # fmt: skip
            setattr(folder, name, path / getattr(folder, name).name)
        folder.release = path
        return folder
    expected = f"a run folder or its release folder{path_problem(path)}"
    raise RunError("run", str(path), expected, "`gswgan train --out RUN` makes one.")
