"""Models from run folders: finished, stopped, or to be trained anew on what was released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gswgan.api.inputs import open_input, open_source
from gswgan.api.model import GSWGAN
from gswgan.api.progress import Callback
from gswgan.api.training import check_fits, check_out, data_for, needs_data, open_stopped
from gswgan.api.wording import in_python_words
from gswgan.critics.kernel.streaming import Workers
from gswgan.plan.settings import pick_device
from gswgan.run import retrain as again
from gswgan.run.folder import find_release


@in_python_words
def load(folder: str | Path, *, device: str | None = None) -> GSWGAN:
    """A trained model from a run folder or from its release alone."""
    return GSWGAN(device=device).read(find_release(Path(folder)))


@in_python_words
def resume(
    folder: str | Path,
    images: Any = None,
    labels: Any = None,
    *,
    device: str | None = None,
    verbose: bool = True,
    callback: Callback | None = None,
    workers: Workers = 1,
    **data: Any,
) -> GSWGAN:
    """Continue a run that was stopped. Data that was read from a path is read again; other data is passed again.

    What was released before is not released again. More arguments: those of `fit` that say how data is read.
    """
    stopped, model = open_stopped(Path(folder)), GSWGAN(device=device, verbose=verbose, callback=callback)
    if not needs_data(stopped):
        model.run(stopped, None)
        return model
    plan = stopped.plan()
    if images is None:
        opened = open_source(stopped.remembered_source())
    else:
        facts = plan.facts
        if facts.labelled and not {"classes", "class_names"} & data.keys():
            data["class_names"] = facts.class_names
        stated = {
            "pixel_range": facts.reading.pixel_range,
            "background": facts.reading.background,
            "fit": facts.reading.fit,
        }
        opened = open_input(images, labels, **{"image_size": facts.image_size, **stated, **data})
    found = data_for(plan, opened)
    check_fits(plan, found)
    model.run(stopped, found, workers, in_memory=opened.source is None)
    return model


@in_python_words
def retrain(
    folder: str | Path, *, out: str | Path, steps: int | None = None, seed: int = 0, device: str | None = None,
    verbose: bool = True, callback: Callback | None = None,
) -> GSWGAN:  # fmt: skip
    """Train a new generator on the embedding that a run has released: no data, no further cost."""
    model = GSWGAN(device=device, verbose=verbose, callback=callback, steps=steps, seed=seed)
    kind = pick_device(device).type
    check_out(Path(out))
    model.run(again.retrain(Path(folder), Path(out), steps=steps, device=kind, seed=seed), None)
    return model
