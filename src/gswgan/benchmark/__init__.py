"""Methods compared: each is trained and measured at every epsilon, and shown in the paper's tables."""
