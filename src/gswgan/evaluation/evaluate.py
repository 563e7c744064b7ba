"""A synthetic set compared with the real data: every metric of the paper, and the checks for the private report.

No choice is made on the test set: recipes are fixed and the last epoch is taken. All figures are computed on real data,
so they are private. Each is kept as soon as it is there (see `Results`); those on real data alone are computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gswgan.data import ImageData
from gswgan.errors import GswganError
from gswgan.evaluation.metric import Figures, Metric, Tick
from gswgan.evaluation.metrics import EvaluationSetup
from gswgan.evaluation.references import References
from gswgan.evaluation.result import Results

Draw = Callable[[int], ImageData]
"""From a seed to a synthetic set."""
Progress = Callable[[str, float, float], None]
"""Told what is being done, and the estimated seconds of work done and in all."""


@dataclass(frozen=True)
class _Job:
    """One measurement: a metric on the synthetic set of a seed, or (no seed) on real data."""

    metric: Metric
    seed: int | None

    @property
    def name(self) -> str:
        figure = self.metric.figures[0].removeprefix("classifiers.")
        return f"{figure} on real data" if self.seed is None else f"{figure}, seed {self.seed}"

    @property
    def seconds(self) -> float:
        return self.metric.real_seconds if self.seed is None else self.metric.seconds


def evaluate(
    draw: Draw,
    setup: EvaluationSetup,
    results: Results,
    *,
    note: Callable[[str], None] = lambda text: None,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, Any]:
    """Measure what is asked for and not there yet; returns the summary of `results`, as the command prints it.

    Each seed draws another synthetic set and gives classifiers other initial weights. A metric that cannot be had
    (an extra, weights, labels or held-out data are missing) is null, and `note` gets a sentence. Stopped at any
    moment, the same call continues with the figure that was being measured.
    """
    metrics, reasons = setup.wanted()
    results.skipped = {name: f"{name} is left out: {why}." for name, why in reasons.items()}
    for why in dict.fromkeys(reasons.values()):
        note(f"left out: {', '.join(name for name in reasons if reasons[name] == why)}: {why}.")
    references = References(setup.folders)
    jobs = _jobs(metrics, setup.request.seeds, results, references)
    total = sum(job.seconds for job in jobs)
    if jobs:
        note(f"{len(jobs)} measurements, about {duration(total)}{_longest(jobs)}.")
    done = 0.0
    drawn: dict[int, ImageData] = {}
    for job in jobs:
        tick = _ticker(job, done, total, progress)
        if job.seed is not None and job.seed not in drawn:
            drawn = {job.seed: draw(job.seed)}  # one at a time
        if job.metric.figures[0] not in results.skipped:
            try:
                _measure(job, drawn, tick, results, references)
            except ValueError as wrong:
                results.skipped[job.metric.figures[0]] = _refusal(job, wrong)
                note(_refusal(job, wrong))
        done += job.seconds
    progress("done", total, total)
    results.save()
    return results.summary()


def _jobs(metrics: list[Metric], seeds: tuple[int, ...], results: Results, references: References) -> list[_Job]:
    """What is still to be measured: on real data first, then seed by seed."""
    jobs = []
    for metric in metrics:
        every = (*metric.figures, *metric.also)
        results.ask(every, seeds)
        stored = references.known([_key(metric, figure) for figure in every])
        known = {figure: stored[_key(metric, figure)] for figure in every if _key(metric, figure) in stored}
        results.real |= known
        if metric.real is not None and not set(metric.figures) <= set(known):
            jobs.append(_Job(metric, None))
    for seed in seeds:
        jobs += [_Job(one, seed) for one in metrics if not all(results.has(figure, seed) for figure in one.figures)]
    return jobs


def _measure(job: _Job, drawn: dict[int, ImageData], tick: Tick, results: Results, references: References) -> None:
    if job.seed is not None:
        results.put(job.metric.of(drawn[job.seed], job.seed, tick), job.seed)
        return
    assert job.metric.real is not None
    found: Figures = job.metric.real(tick)
    references.put({_key(job.metric, figure): value for figure, value in found.items()})
    results.real |= found
    results.save()


def _refusal(job: _Job, wrong: ValueError) -> str:
    """Scikit-learn refuses some sets (a class of one image, say): that classifier is null, and the others go on."""
    name = job.metric.figures[0]
    if isinstance(wrong, GswganError) or not name.startswith("classifiers."):
        raise wrong
    return f"{name} is left out: it could not be trained ({wrong})."


def _key(metric: Metric, figure: str) -> str:
    return f"{figure}: {metric.key}" if metric.key else figure


def _ticker(job: _Job, done: float, total: float, progress: Progress) -> Tick:
    def tick(part: int, whole: int) -> None:
        progress(job.name, done + job.seconds * part / whole, total)

    tick(0, 1)
    return tick


def _longest(jobs: list[_Job]) -> str:
    longest = max(jobs, key=lambda job: job.seconds)
    return f"; the longest is {longest.name}: {duration(longest.seconds)}" if longest.seconds > 60 else ""


def duration(seconds: float) -> str:
    """A rough time in words."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
