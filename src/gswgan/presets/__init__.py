"""Presets: TOML files that are part of the package. See training/gs_wgan_plan.py."""
