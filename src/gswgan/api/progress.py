"""How a run is followed: a bar in terminals and notebooks, log lines elsewhere, a callback. All of it is public."""

from __future__ import annotations

import html
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from gswgan.api.plan_text import guarantee_line
from gswgan.api.wording import python_words
from gswgan.plan.plan import Plan
from gswgan.terminal import Move, PlainConsole, terminal_bar

logger = logging.getLogger("gswgan")

LOG_LINES = 20
"""Lines about the steps of a run that has no bar."""

SECONDS_BETWEEN_UPDATES = 0.2
"""Of the bar in a notebook."""


@dataclass(frozen=True, kw_only=True)
class StepDone:
    """What a callback is told after each step. It follows from the plan and the clock alone."""

    step: int
    steps: int
    epsilon: float | None
    """What has been spent so far, at `delta`; None where there is no guarantee."""
    delta: float | None
    neighbours: str | None
    observer: str | None


Callback = Callable[[StepDone], object]


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What a run calls while it lasts."""

    step: Callable[[int], None] = lambda done: None
    """With the number of steps done."""
    reading: Callable[[int, int], None] = lambda done, total: None
    """With the number of records read, and of all."""
    note: Callable[[str], None] = lambda text: None
    """With a line about what is going on; never anything private."""


@contextmanager
def watch(plan: Plan, *, verbose: bool, callback: Callback | None) -> Iterator[Watch]:
    """Follow a run of the plan: with `verbose` by a bar where one can be shown, else by log lines."""
    steps, promised = plan.training.steps, plan.guarantee
    stated = {name: getattr(promised, name, None) for name in ("delta", "neighbours", "observer")}
    with ExitStack() as shown:
        promise = python_words(guarantee_line(plan))
        logger.info("%s", promise)
        bar = open_bar(plan, verbose, promise)
        move = _log_steps(plan) if bar is None else shown.enter_context(bar)

        def step(done: int) -> None:
            move(done)
            if callback is not None:
                callback(StepDone(step=done, steps=steps, epsilon=plan.epsilon_after(done), **stated))

        yield Watch(step=step, reading=partial(move, what="record"), note=logger.info)


def open_bar(plan: Plan, verbose: bool, title: str) -> Any:
    """The bar for this place, below a line of text: a notebook's, a terminal's, or None."""
    if not verbose:
        return None
    if _in_notebook():
        return notebook_bar(plan.training.steps, partial(spent, plan), title)
    console = PlainConsole(stderr=True, highlight=False, soft_wrap=True, markup=False)
    if not console.is_terminal:
        return None
    console.print(title)
    return terminal_bar(console, plan.training.steps, "step", partial(spent, plan))


def spent(plan: Plan, done: int) -> str:
    """How much of the guarantee's epsilon is spent after so many steps; the guarantee itself is stated before."""
    if plan.guarantee is None or plan.void is not None:
        return "NO guarantee"
    return f"{plan.epsilon_after(done):.3g} of {plan.guarantee.epsilon:.3g} spent"


@contextmanager
def notebook_bar(total: int, spent: Callable[[int], str], title: str) -> Iterator[Move]:
    """The same in a notebook, as an HTML element that needs no widgets, below a line of text."""
    from IPython.display import HTML, display

    display(HTML(html.escape(title)))
    handles: dict[str, Any] = {}
    begun, shown = time.monotonic(), 0.0

    def move(done: int, of: int = total, what: str = "step") -> None:
        nonlocal shown
        now = time.monotonic()
        if what in handles and done < of and now - shown < SECONDS_BETWEEN_UPDATES:
            return
        shown = now
        left = f"{(now - begun) * (of - done) / done:,.0f} s left" if 0 < done < of else f"{now - begun:,.0f} s"
        words = [f"{what} {done:,}/{of:,}", left, *([spent(done)] if what == "step" else [])]
        bar = HTML(f'<progress value="{done}" max="{of}"></progress> {html.escape(", ".join(words))}')
        if what in handles:
            handles[what].update(bar)
        else:
            handles[what] = display(bar, display_id=True)

    yield move


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this: IPython in a terminal is a terminal."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def _log_steps(plan: Plan) -> Move:
    """Write a line to the log now and then."""
    every = max(1, plan.training.steps // LOG_LINES)
    tenth = -1

    def move(done: int, of: int = plan.training.steps, what: str = "step") -> None:
        nonlocal tenth
        if what == "step" and (done % every == 0 or done == of):
            logger.info("step %d/%d, %s", done, of, spent(plan, done))
        elif what != "step" and done * 10 // max(1, of) != tenth:
            tenth = done * 10 // max(1, of)
            logger.info("%s %d/%d", what, done, of)

    return move
