"""From the arguments of `gswgan evaluate` to a setup: the real data, the synthetic set, where figures are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gswgan.data import ImageData
from gswgan.data.download import FEMNIST_WRITERS
from gswgan.data.sources import NAMES
from gswgan.errors import DataError, PlanError
from gswgan.evaluation.classifiers import ALL, FAST, check
from gswgan.evaluation.evaluate import Draw
from gswgan.evaluation.metrics import METRICS, EvaluationSetup, Request
from gswgan.evaluation.real_data import load_data, load_held_out, match_classes
from gswgan.evaluation.references import reference_folders
from gswgan.evaluation.result import Results
from gswgan.evaluation.synthetic import PER_CLASS, make_synthetic, read_synthetic, stratified
from gswgan.plan.settings import pick_device
from gswgan.privacy.storage import check_private
from gswgan.run.folder import find_release
from gswgan.run.released import load


def parse_request(metrics: str | None, classifiers: str, settings: str, seeds: str, **options: Any) -> Request:
    """What to measure, from text with commas between the names."""
    named, several = _names(metrics or ""), parse_classifiers(classifiers)
    for name in named:
        if name not in METRICS:
            raise PlanError("metrics", name, f"names out of {', '.join(METRICS)}")
    check(several, settings)
    device = pick_device(options.pop("device"))
    return Request(
        metrics=named, classifiers=several, settings=settings, seeds=parse_seeds(seeds), device=device, **options  # type: ignore[arg-type]
    )  # fmt: skip


def parse_classifiers(text: str) -> tuple[str, ...]:
    """fast, all, or names."""
    return {"fast": FAST, "all": ALL}.get(text) or _names(text)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between."""
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
        if all(0 <= seed < 2**32 for seed in found):
            return found
    except ValueError:
        pass
    raise PlanError("seeds", text, "whole numbers with commas between, such as 1,2,3")


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip().replace("-", "_") for part in text.split(",") if part.strip()))


class EvaluationInputs:
    """What the arguments name: the real data, the synthetic set, and where figures may be kept."""

    def __init__(
        self,
        source: Path,
        data: str | None,
        test_data: str | None,
        classes: int | None,
        reading: Mapping[str, Any] | None = None,
        *,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`reading`: how to read the data, where that is not as the run read it (fields of `ReadOptions`)."""
        self.source, self.data, self.test_data, self.classes = source, data, test_data, classes
        self.reading = {name: value for name, value in (reading or {}).items() if value is not None}
        self.notes: list[str] = []  # what a reader of the figures must know
        self._tell = note
        is_file = source.is_file() or source.suffix.lower() == ".npz"
        self.folder = None if is_file else find_release(source)
        self.plan = None if self.folder is None else self.folder.plan()
        whole = self.folder is not None and self.folder.release == self.folder.root / "release"
        self.run = self.folder.root if self.folder is not None and whole and self.folder.private.is_dir() else None
        if data is None and (self.run is None or self.folder is None or not self.folder.source.exists()):
            raise DataError("data", None, "the real data to measure against", "Pass --data.")

    def setup(self, request: Request, samples: int | None) -> tuple[Draw, EvaluationSetup, Results]:
        """How a seed becomes a synthetic set, what it is measured by, and the file of its figures."""
        train, test = self.real()
        draw, samples, identity = self._synthetic(train, samples, str(request.device))
        most = min(samples, train.n)
        if request.train_size is not None and request.train_size > most:
            raise DataError("train-size", request.train_size, f"at most {most}, the smaller of the two sets")
        folders = reference_folders(train, test, self.run)
        setup = EvaluationSetup(train=train, test=test, folders=folders, request=request, samples=samples)
        results = Results(self._file_of_figures(), setup.basis(identity))
        if results.path is None:
            self._note("Nothing is kept: figures on real data do not belong into a release.")
        return draw, setup, results

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._tell(text)

    def about(self, request: Request) -> dict[str, Any]:
        """What stands beside the figures."""
        return {"seeds": list(request.seeds), "notes": self.notes}

    def real(self) -> tuple[ImageData, ImageData | None]:
        """Training and held-out data; None where there is no held-out part."""
        where: dict[str, Any] = {"spec": self.data, "classes": self.classes}
        known = None if self.plan is None else self.plan.facts
        if self.folder is not None and self.data is None:
            where = self.folder.remembered_source()
        elif known is not None:
            where |= {"image_size": known.image_size, "labels": known.classes > 1}
            stated = known.classes == 1 or (self.data in NAMES and self.data != FEMNIST_WRITERS.name)
            where["classes"] = None if stated else known.classes  # FEMNIST has 62 classes, or 36
            where |= {name: getattr(known.reading, name) for name in ("pixel_range", "background", "layout", "fit")}
        where |= self.reading
        train = load_data(**where)
        if known is not None and train.classes != known.classes:
            expected = f"{known.classes} classes, as the run has"
            raise DataError("data", f"{train.name}, {train.classes} classes", expected)
        if known is not None and known.class_names != tuple(map(str, range(known.classes))):  # they have names
            train = match_classes(train, known.class_names, "data: classes")
        return train, load_held_out(train, self.test_data, note=self._note, **where)

    def _file_of_figures(self) -> Path | None:
        """The file for the figures; None where it would lie in a release."""
        if self.folder is None:
            in_release = (self.source.resolve().parent / "model.json").exists()
            return None if in_release else self.source.with_suffix(".evaluation.json")
        if self.run is None:
            return None
        check_private(self.folder.private)
        return self.folder.private / "evaluation.json"

    def _synthetic(self, train: ImageData, samples: int | None, device: str) -> tuple[Draw, int, str]:
        """How a seed becomes a synthetic set, its size, and a checksum of what it comes from."""
        if self.folder is None:
            content = read_synthetic(self.source, train)
            size = content.n if samples is None else samples
            if size > content.n:
                raise DataError("samples", size, f"at most {content.n}, the images of {self.source}")
            checksum = hashlib.sha256(self.source.read_bytes()).hexdigest()
            return lambda seed: content if size == content.n else stratified(content, size, seed), size, checksum
        model, least = load(self.source, device=device), PER_CLASS * train.classes
        make_synthetic(*model.sample(least, seed=0), train, name=str(self.source))  # says whether its images fit
        size = train.n if samples is None else samples
        if size < least:
            raise DataError("samples", size, f"at least {least}, {PER_CLASS} per class")
        checksum = hashlib.sha256(self.folder.generator.read_bytes()).hexdigest()
        return lambda seed: make_synthetic(*model.sample(size, seed=seed), train, name="run"), size, checksum
