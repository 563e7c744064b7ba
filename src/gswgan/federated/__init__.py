"""Federated training: the kernel critic in one round, Algorithm 2 in many (extra `federated`).

Read in this order: trust.py (plans of clients and what answers cost), statement.py (what each observer is told),
messages.py (what travels); memory.py, limits.py, client_answers.py and client.py (what a client remembers, what an
answer may take, how it is made, what a client does), site.py (how a client is set up); answers.py, server.py and
remote_critics.py (what the server keeps, the one round, the rounds of Algorithm 2), by_files.py (the round without a
network); site_steps.py and site_rounds.py (preset refined at a site and at the operator); flower.py (both sides on
Flower), simulation.py, node.py and listener.py (a site's own node). Only flower.py and node.py import Flower.
"""
