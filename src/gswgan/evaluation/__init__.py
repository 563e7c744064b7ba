"""Measures of a synthetic set against real data: the metrics of the paper, and checks for memorisation."""
