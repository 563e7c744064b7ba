"""Presets: TOML files that are part of the package. See methods/gs_wgan_plan.py."""
