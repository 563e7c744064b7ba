"""`gswgan`, one rank of which is killed in its eleventh step: torchrun killed_rank.py train ... --out RUN.

Each rank writes its process number beside the run.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from gswgan.cli.main import run
from gswgan.critics.ensemble.ensemble import Ensemble

learn = Ensemble.learn


def learn_or_die(self: Ensemble, step: int, generator: object) -> None:
    learn(self, step, generator)  # type: ignore[arg-type]
    if step == 10 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    beside = Path(sys.argv[-1]).parent
    (beside / f"rank-{os.environ['RANK']}").write_text(str(os.getpid()))
    Ensemble.learn = learn_or_die  # type: ignore[method-assign]
    run()
