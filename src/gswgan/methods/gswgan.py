"""GS-WGAN as a method: the kernel critic (preset kernel), what starts from it, and the ensemble of critics."""

from __future__ import annotations

import dataclasses
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from gswgan.errors import PlanError
from gswgan.methods import kernel_then_ensemble, refined
from gswgan.methods.ensemble import FOR_CLIENTS, PlannedEnsemble, ensemble_draft, ensemble_privacy, with_preset
from gswgan.methods.kernel import PlannedKernel, kernel_draft, kernel_privacy
from gswgan.methods.kernel_then_ensemble import PlannedKernelThenEnsemble
from gswgan.methods.refined import PlannedRefined
from gswgan.plan.defaults import ensemble_defaults, kernel_defaults, sum_noise
from gswgan.plan.method import Method, PlanRequest
from gswgan.plan.plan import Draft, PrivacySettings
from gswgan.privacy import Event

PRESETS = ("kernel", "refined", "ensemble", "ensemble-alone", "paper", FOR_CLIENTS)


class GSWGANMethod(Method):
    """A preset says which critic; `noise` is noise_std over the L2 bound of one contribution."""

    name = "gswgan"
    about = (
        "GS-WGAN (Chen, Orekondy, Fritz 2020), correctly accounted: it sanitizes the gradients that reach the generator"
    )
    settings = PlannedKernel | PlannedEnsemble | PlannedKernelThenEnsemble | PlannedRefined
    presets = PRESETS
    takes_critics = True
    zeroed_presets = ("kernel", "refined")
    public_presets = ("kernel", "refined")

    def events(self, request: PlanRequest, noise: float) -> Event:
        """Of the kernel one, of the ensemble one in each step, after those of its start."""
        table = load_preset(request.preset)
        if table["critic"] == "kernel":
            return kernel_privacy(request, noise).total()
        if table["critic"] == "refined":
            return refined.events(request, noise)
        if _is_started(table, request):
            return kernel_then_ensemble.events(request, _ensemble_sums(table, request, noise))
        return _ensemble_sums(table, request, noise).total()

    def draft(self, request: PlanRequest, noise: float) -> Draft:
        """The preset's critic for these facts."""
        table = load_preset(request.preset)
        if request.critics is not None and table["critic"] != "ensemble":
            expected = f"no number of critics with preset {request.preset}"
            raise PlanError("critics", request.critics, expected, "Use --preset ensemble.")
        if table["critic"] == "kernel":
            privacy = kernel_privacy(request, noise)
            if request.public is not None and request.public_features:
                expected = "none with preset kernel beside public features: they would train nothing"
                raise PlanError("public", request.public.name, expected, "Pass one of the two, or --preset refined.")
            kernel = kernel_defaults(
                request.facts, sum_noise(request.facts, privacy), request.device, public=request.public,
                public_features=request.public_features,
            )  # fmt: skip
            return kernel_draft(self.name, request, privacy, kernel)
        if table["critic"] == "refined":
            return refined.draft(request, noise)
        defaults = with_preset(ensemble_defaults(request.facts, request.device), table)
        made = ensemble_draft(request, _ensemble_sums(table, request, noise), defaults)
        return kernel_then_ensemble.draft(made, request) if _is_started(table, request) else made

    def own_noise(self, preset: str) -> float | None:
        """The noise_std of a preset that fixes it."""
        found: float | None = load_preset(preset).get("privacy", {}).get("noise_std")
        return found


@cache
def _read_preset(name: str) -> str:
    return (resources.files("gswgan.methods.presets") / f"{name}.toml").read_text()


def load_preset(name: str) -> dict[str, Any]:
    """A preset as plain data; it is part of the installed package."""
    if name not in PRESETS:
        raise PlanError("preset", name, "one of " + ", ".join(PRESETS), "Leave --preset out for the best critic.")
    return tomllib.loads(_read_preset(name))


def _is_started(table: dict[str, Any], request: PlanRequest) -> bool:
    return bool(table.get("start")) and kernel_then_ensemble.is_started(request.facts)


def _ensemble_sums(table: dict[str, Any], request: PlanRequest, noise: float) -> PrivacySettings:
    """Of the ensemble, with the number of steps that it has after a start."""
    if request.steps is None and _is_started(table, request):
        request = dataclasses.replace(request, steps=kernel_then_ensemble.RELEASES)
    return ensemble_privacy(table, request, noise)


METHOD = GSWGANMethod()
