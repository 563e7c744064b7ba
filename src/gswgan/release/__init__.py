"""A release that others can check: packed with checksums, verified without any private file."""
