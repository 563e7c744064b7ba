"""Data that stays with its people: the kernel critic in one round, Algorithm 2 in many (extra `federated`).

Read in this order: trust.py (who trusts whom, and what each observer may be told), messages.py (what travels),
memory.py, limits.py, records.py and client.py (what a client remembers, what it may cost, what it answers from, what
it does), site.py (how one is set up), round.py (what the server does), by_files.py (the round without a network); for
Algorithm 2 critic_plan.py, critic_messages.py, critic_client.py and remote_critics.py, in the same order; then
client_app.py and server_app.py, which put both behind Flower, node.py (a site's own node) and simulation.py. Only the
last four import Flower.
"""
