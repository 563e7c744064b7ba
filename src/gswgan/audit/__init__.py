"""An empirical lower bound on epsilon: what an attacker can show about the mechanism, against what is stated."""
