"""Presets: TOML files that are part of the package. See methods/ensemble.py."""
