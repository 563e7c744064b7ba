"""PATE-GAN (Jordon, Yoon, van der Schaar 2019): teachers label fakes by a noisy vote, a student learns the labels.

Algorithm 1 of its paper: k teacher discriminators learn to tell the records of their own part from fakes; a student
discriminator is shown fakes only, each labelled by PATE, argmax over {fake, real} of the teachers' count plus
Laplace noise; the generator learns against the student. The student and all that follows is post-processing.

The guarantee is data-independent: every labelled fake costs two counts that move by 1, whatever the votes are. (The
paper's moments accountant looks at the votes: its figure is private, and is not used.) What public implementations
got wrong is excluded by construction and tested: the data is divided once, by index, and never again (not drawn anew in
each iteration: synthcity issue 275); each teacher has its own (not all of them one: mlforhealthlabpub issue 29); the
events that are accounted for are those that the mechanism records (no accountant that forgets: synthcity issue 276).

On images it is known to stall: all teachers call all fakes fake, the student learns to say so, and its gradient
vanishes. `gain`, the widths and the numbers of updates are the GS-WGAN paper's remedies (initialisation, capacity,
more updates); the private log has the step from which the gradient was gone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gswgan.critics import Critic
from gswgan.critics.ensemble import network
from gswgan.critics.ensemble.adam import AdamState, adam_step, init_adam
from gswgan.critics.ensemble.convolution import row_sum
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.ensemble.network import Buffers, CriticShape, Parameters, Weights
from gswgan.critics.ensemble.stack import Stack
from gswgan.critics.teachers import Teachers
from gswgan.data import ImageData
from gswgan.errors import PlanError
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.methods.gan_generator import gan_generator, is_tiny
from gswgan.methods.teacher_count import check_teachers, number_of_teachers
from gswgan.plan.context import RunContext
from gswgan.plan.method import Method, PlanRequest
from gswgan.plan.plan import CriticSettings, Draft, Plan, TrainingSettings
from gswgan.privacy import Ballot, BatchStreams, Event, Ledger, Repeated, Streams, VoteMechanism
from gswgan.ranges import Betas, LearningRate, NoiseMultiplier, Range, TeacherCount, Updates, Width

FAKE, REAL = 0, 1

VANISHED = 0.01
"""A generator whose gradient is below this share of the largest so far learns nothing any more."""


@dataclass(frozen=True, kw_only=True)
class PateGanSettings(CriticSettings):
    """Teachers, student and noise. `scale`, `batch_size` and the updates are what the guarantee depends on."""

    teachers: TeacherCount  # k
    scale: NoiseMultiplier  # of the Laplace noise on a count, in votes: 1 / lambda
    batch_size: Annotated[int, Range(2, 2**20)] = 64  # n: records and fakes per update of a teacher or the student
    teacher_updates: Updates = 5  # n_T
    student_updates: Updates = 5  # n_S
    generator_updates: Updates = 1  # steps of the generator for each round of the above
    teacher_width: Width = 16
    student_width: Width = 16
    gain: Annotated[float, Range(1e-6, 1e6)] = 1.0  # of the initial weights, uniform within gain / sqrt(inputs)
    learning_rate: LearningRate = 1e-4
    betas: Betas = (0.5, 0.999)

    def __post_init__(self) -> None:
        if min(self.teacher_updates, self.student_updates, self.generator_updates) < 1:
            raise PlanError("updates", self, "at least one of each kind")
        if not self.gain > 0:
            raise PlanError("gain", self.gain, "a positive number")

    @property
    def ballot(self) -> Ballot:
        """What a student's update releases: for each of its fakes, how many teachers call it fake and how many real."""
        return Ballot(questions=self.batch_size, options=2)

    def events(self, steps: int) -> Event:
        """So many steps, whatever the votes will be.

        A replaced teacher's vote takes 1 from one count and adds 1 to the other: L1 sensitivity 2 for each labelled
        fake, as in the paper, whose (2 lambda)-DP for a label is two values that move by 1 under noise of 1 / lambda.
        """
        rounds = math.ceil(steps / self.generator_updates)
        return Repeated(event=self.ballot.laplace(self.scale), times=rounds * self.student_updates)

    def total(self, draft: Draft, steps: int) -> Event:
        """One release for each update of the student."""
        return self.events(steps)

    def describe(self, draft: Draft) -> str:
        """Teachers and student on one line."""
        return (
            f"student of width {self.student_width}; {self.teachers:,} teachers of width {self.teacher_width}, "
            f"each with its own part of the data, vote on {self.student_updates} x {self.batch_size} fakes per round"
        )

    def check(self, plan: Plan) -> None:
        """Each teacher has a part of the data."""
        check_teachers(plan.facts, self.teachers)

    def make(self, plan: Plan, context: RunContext) -> PateGan:
        """The teachers behind the barrier, and the student."""
        return PateGan(self, **context.for_votes(plan.facts.shape))


def weights_of(params: Parameters) -> Weights:
    """The networks as they are: unlike our critics, those of PATE-GAN have no spectral norm."""
    layers = [name.removesuffix(".weight") for name in params if name.endswith(".weight")]
    convolutions = [(params[f"{n}.weight"], params[f"{n}.bias"]) for n in layers if n.startswith("conv")]
    head = torch.cat([params[f"{n}.weight"] for n in layers if not n.startswith("conv")], dim=1)
    channels = convolutions[-1][0].shape[1]
    side = math.isqrt(head.shape[2] // channels)
    return Weights(
        convolutions=convolutions, head=head.unflatten(2, (channels, side, side)), head_bias=params["linear.bias"]
    )


def learn_labels(
    params: Parameters, adam: AdamState, images: Tensor, labels: Tensor, real: Tensor, settings: PateGanSettings
) -> Tensor:
    """One update of m discriminators by the cross-entropy with `real` [m, B]: 1 for records, 0 for fakes; in place."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    logits = network.score(weights_of(leaves), images, labels)
    loss = row_sum(F.binary_cross_entropy_with_logits(logits, real, reduction="none")) / images.shape[1]
    grads = torch.autograd.grad(loss, list(leaves.values()), torch.ones_like(loss))
    adam_step(params, dict(zip(leaves, grads)), adam, learning_rate=settings.learning_rate, betas=settings.betas)
    return loss.detach()


class Discriminators(Teachers):
    """Teachers that tell records from fakes by the cross-entropy."""

    def __init__(self, settings: PateGanSettings, shape: CriticShape, **rest: Any) -> None:
        self.pate_gan = settings
        learning = EnsembleSettings(
            width=settings.teacher_width, updates=settings.teacher_updates, learning_batch=settings.batch_size
        )
        super().__init__(learning, shape, count=settings.teachers, **rest)
        for value in self.params.values():
            value *= settings.gain

    def _update(self, critics: Stack, records: Tensor, fake: Tensor, labels: Tensor, mix: Tensor) -> None:
        """Line 9 of Algorithm 1, for the members at once; each record of a batch has a fake of its own class."""
        real = torch.ones(labels.shape, device=labels.device)
        self.loss = learn_labels(
            critics.params,
            critics.adam,
            torch.cat([records, fake], dim=1),
            torch.cat([labels, labels], dim=1),
            torch.cat([real, torch.zeros_like(real)], dim=1),
            self.pate_gan,
        )

    def votes(self, fake: Tensor, labels: Tensor) -> Tensor:
        """FAKE or REAL from each teacher for each fake, [K, n]: private."""

        def vote(params: Parameters, buffers: Buffers) -> Tensor:
            critics = len(params["linear.bias"])
            logits = network.score(weights_of(params), fake.expand(critics, *fake.shape), labels.expand(critics, -1))
            return torch.where(logits > 0, REAL, FAKE)  # a logit that is no number is a vote for FAKE

        return self.ask(vote)


class PateGan(Critic):
    """Teachers behind the barrier, and the student in front of it."""

    def __init__(
        self,
        settings: PateGanSettings,
        *,
        image_size: int,
        channels: int,
        classes: int,
        ledger: Ledger,
        public: Streams,
        secret: Streams,
        device: torch.device,
    ) -> None:
        self.settings, sizes = settings, {"image_size": image_size, "channels": channels, "classes": classes}
        self.teachers = Discriminators(
            settings,
            CriticShape(width=settings.teacher_width, **sizes),
            public=public,
            batches=BatchStreams(secret),
            device=device,
        )
        shape = CriticShape(width=settings.student_width, **sizes)
        self.student, _ = network.init_critics(shape, 1, seed=public.integer("student weights"), device=device)
        for value in self.student.values():
            value *= settings.gain
        self.adam = init_adam(self.student)
        event = settings.ballot.laplace(settings.scale)
        self._mechanism = VoteMechanism(ballot=settings.ballot, event=event, ledger=ledger, streams=secret)
        self._step, self._labelled_real, self._votes_real = 0, 0.0, 0.0
        self._norm = 0.0
        self._stall = {name: torch.zeros((), dtype=torch.float64) for name in ("peak", "vanished", "unanimous")}

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Divide the data, once. Nothing leaves."""
        self.teachers.prepare(data, resumed=resumed)

    def learn(self, step: int, generator: Generator) -> None:
        """Lines 5 to 18 of Algorithm 1: n_T updates of the teachers, n_S of the student on newly labelled fakes."""
        self._step = step
        if step % self.settings.generator_updates:
            return
        self.teachers.learn(step, generator)
        for update in range(self.settings.student_updates):
            fake, labels = generator.fakes(self.settings.batch_size, "student", step, update)
            votes = self.teachers.votes(fake, labels)
            counts = self._mechanism.answer(f"step {step} labels {update}", votes)
            real = torch.from_numpy(counts.argmax(axis=1)).to(fake)  # PATE_lambda
            learn_labels(self.student, self.adam, fake[None], labels[None], real[None], self.settings)
            self._labelled_real, self._votes_real = float(real.mean()), float(votes.double().mean())
        since = self._stall["unanimous"]  # a step counts from 1 on, as in the log
        since.fill_((float(since) or step + 1) if self._votes_real == 0 else 0)

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Gradient of log(1 - S(G(z))) with respect to each fake (line 20): through the student, so it is free."""
        images, weights = fake.detach()[None], weights_of(self.student)
        chance = torch.sigmoid(network.score(weights, images, labels[None]))[0, :, None, None, None]
        gradient = -chance * network.image_gradient(weights, images, labels[None])[0]
        self._norm = float(gradient.flatten(1).norm(dim=1).mean())
        self._stall["peak"].clamp_(min=self._norm)
        if self._norm < VANISHED * float(self._stall["peak"]) and not self._stall["vanished"]:
            self._stall["vanished"].fill_(self._step + 1)
        return gradient

    def metrics(self) -> dict[str, Any]:
        """The last step: its gradient, how many fakes were called real (by labels, by teachers), and where it stalled.

        Since when all teachers have called all fakes fake (the labels say nothing then but noise), and in which step
        the gradient first fell below VANISHED of its peak.
        """
        return {
            **self.teachers.metrics(),
            "gradient_norm": self._norm,
            "labelled_real": self._labelled_real,
            "votes_real": self._votes_real,
            "unanimous_since": int(self._stall["unanimous"]) or None,
            "vanished_at": int(self._stall["vanished"]) or None,
        }

    def state(self) -> dict[str, Tensor]:
        """Teachers, student and what the log needs."""
        groups = {"params": self.student, "exp_avg": self.adam.exp_avg, "exp_avg_sq": self.adam.exp_avg_sq}
        tensors = {f"student/{group}/{name}": v for group, part in groups.items() for name, v in part.items()}
        tensors |= {"student/steps": self.adam.steps, **{f"stall/{name}": v for name, v in self._stall.items()}}
        return tensors | {f"teachers/{name}": value for name, value in self.teachers.state().items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        for name, value in self.state().items():
            value.copy_(tensors[name])


class PateGanMethod(Method):
    """The paper's settings with Laplace noise of this scale on the votes; for tiny images less of everything."""

    name = "pate-gan"
    about = "PATE-GAN (Jordon, Yoon, van der Schaar 2019): teachers label fakes by noisy votes, a student learns them"
    settings = PateGanSettings
    takes_critics = True

    def critic(self, request: PlanRequest, noise: float) -> PateGanSettings:
        """Teachers and student at this noise."""
        critic = PateGanSettings(teachers=number_of_teachers(request, most=100), scale=noise)
        return replace(critic, batch_size=32, teacher_width=4, learning_rate=1e-3) if is_tiny(request.facts) else critic

    def steps(self, request: PlanRequest) -> int:
        """As asked for, or by the size of the images."""
        return request.steps or (100 if is_tiny(request.facts) else 500)

    def events(self, request: PlanRequest, noise: float) -> Event:
        """One release for each update of the student."""
        return self.critic(request, noise).events(self.steps(request))

    def draft(self, request: PlanRequest, noise: float) -> Draft:
        """All settings, with the generator of the GAN baselines."""
        critic = self.critic(request, noise)
        return Draft(
            method=self.name,
            preset=request.preset,
            facts=request.facts,
            critic=critic,
            generator=gan_generator(request),
            optimizer=OptimizerSettings(learning_rate=critic.learning_rate, betas=critic.betas),
            training=TrainingSettings(steps=self.steps(request), batch_size=critic.batch_size),
        )


METHOD = PateGanMethod()
