"""The public images of a run, kept beside its private files until it ends, so that a resumed run has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import safetensors.numpy

from gswgan.data.public import PublicImages, images_digest
from gswgan.errors import PlanError, RunError, path_problem
from gswgan.plan.plan import Plan
from gswgan.privacy.storage import read_file, write_durably

HEADER_BYTES = 4096
"""More than the header of the file has."""


def check_public(plan: Plan, public: PublicImages | None) -> None:
    """Refuse other public images than those of the plan, before anything is written."""
    stated = plan.public
    if stated is None and public is not None:
        expected = "none: the plan states none"
        raise PlanError("public", f"{len(public.images):,} images", expected, "Leave --public out, or plan anew.")
    if stated is None:
        return
    expected = f"the {stated.images:,} images of the plan, with SHA-256 {stated.digest}"
    if public is None:
        raise PlanError("public", None, expected, "Pass --public with the images that the plan was made with.")
    if (len(public.images), public.digest) != (stated.images, stated.digest):
        found = f"{len(public.images):,} images with SHA-256 {public.digest}"
        raise PlanError("public", found, expected, "Pass --public with the images that the plan was made with.")


def keep_public(path: Path, public: PublicImages) -> None:
    """Write them, durably."""
    write_durably(path, safetensors.numpy.save({"images": np.ascontiguousarray(public.images)}))


def kept_public(path: Path, plan: Plan) -> np.ndarray:
    """Read them again; a RunError where they are not those of the plan."""
    if plan.public is None:
        raise RunError("public images", None, "a plan that states some")
    try:
        most = plan.public.images * plan.facts.pixels + HEADER_BYTES
        images: np.ndarray | None = safetensors.numpy.load(read_file(path, most)).get("images")
    except (OSError, ValueError, safetensors.SafetensorError) as wrong:
        expected = f"the public images of the run{path_problem(path)}"
        raise RunError("file", str(path), expected, "Restore the file, or start a new run.") from wrong
    if images is None or images_digest(images) != plan.public.digest:
        raise RunError("file", str(path), "the public images of the plan", "Restore the file, or start a new run.")
    return images
