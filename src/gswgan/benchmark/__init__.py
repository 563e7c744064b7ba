"""Methods held against each other: each at every epsilon, trained, measured and put into the paper's tables."""
