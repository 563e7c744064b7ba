"""`python -m gswgan`, as torchrun starts it."""

from gswgan.cli.main import run

if __name__ == "__main__":
    run()
