"""Presets: TOML files that are part of the package. See training/planner.py."""
