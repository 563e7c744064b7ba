"""The kernel critic: public random features, the class mean embedding that is released once, and streaming sums."""
