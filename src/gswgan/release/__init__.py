"""A release packed as a bundle that others can check: with checksums, and without any private file."""
