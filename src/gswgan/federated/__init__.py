"""Data that stays with its people: the kernel critic in one round, Algorithm 2 in many (extra `federated`).

Read in this order: trust.py (who trusts whom, and what each observer may be told), messages.py (what travels),
client.py (what a client does and remembers), round.py (what the server does); for Algorithm 2 critic_plan.py,
critic_messages.py, critic_client.py and remote_critics.py, in the same order; then client_app.py and server_app.py,
which put both behind Flower, and simulation.py. Only the last three import Flower.
"""
