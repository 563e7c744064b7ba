"""The methods that the paper compares itself with, one file each: every one is a critic in the same training loop."""
