"""A run: its folder, the training loop (Algorithm 1), checkpoints, and what is published at the end."""
