"""Every method by its name: GS-WGAN and those that its paper compares itself with, one file each."""

from __future__ import annotations

from gswgan.errors import PlanError, short
from gswgan.methods import dp_merf, dp_merf_ae, dp_sgd_gan, fed_avg_gan, g_pate, gan, gs_wgan, pate_gan
from gswgan.methods.method import Method

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        gs_wgan.METHOD,
        dp_merf.METHOD,
        dp_merf_ae.METHOD,
        dp_sgd_gan.METHOD,
        g_pate.METHOD,
        pate_gan.METHOD,
        gan.METHOD,
    )
}


BY_PERSON: dict[str, Method] = {fed_avg_gan.METHOD.name: fed_avg_gan.METHOD}
"""Methods for clients alone: they take data by person and no other."""


def find_method(name: object) -> Method:
    """The method of this name."""
    known = METHODS | BY_PERSON
    if not isinstance(name, str) or name not in known:
        raise PlanError("method", short(name), "one of " + ", ".join(known), "Leave --method out for GS-WGAN.")
    return known[name]
