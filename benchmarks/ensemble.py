"""How fast are K critics as one batched model, against a loop over modules and against torch.func.vmap?

Every contender does the same work: for each critic one WGAN-GP update (power iteration, forward, gradient
penalty, backward, Adam) on its own batch. They take turns in one process; the best turn of each counts.
On a GPU the batched critics compute in bfloat16 and are recorded, as in a training; the others in float32.

    python benchmarks/ensemble.py --device cpu --seconds 5 --out benchmarks/results/ensemble_cpu.json
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils.parametrize import cached

from gswgan.critics.ensemble.adam import AdamState, adam_step, init_adam
from gswgan.critics.ensemble.loss import critic_gradients
from gswgan.critics.ensemble.network import Buffers, CriticShape, Parameters, init_critics, power_iteration
from gswgan.generators.cuda_graphs import EAGER, Captured
from plain_critic import PlainCritic, plain_loss
from record import record

PENALTY = {"penalty_weight": 10.0, "drift_penalty": 1e-3}
LEARNING_RATE, BETAS = 1e-4, (0.5, 0.9)
COUNTS = (16, 64, 256)
SETTINGS = {  # image side, width, batch, critics that go through a layer at once on the CPU and on a GPU
    "small": {"image_size": 8, "width": 8, "batch": 8, "chunk": {"cpu": 64, "cuda": 256}},
    "paper": {"image_size": 28, "width": 64, "batch": 32, "chunk": {"cpu": 4, "cuda": 64}},
}
Turn = Callable[[float], int]  # updates critics until all have had one or the seconds are over: how many


class Bench:
    """K critics of one setting with their batches, and the three ways to update them."""

    def __init__(self, setting: dict[str, Any], count: int, device: str) -> None:
        self.shape = CriticShape(image_size=setting["image_size"], channels=1, classes=10, width=setting["width"])
        self.device, self.chunk = device, min(count, setting["chunk"][device])
        self.params, self.buffers = init_critics(self.shape, count, seed=0, device=device)
        images, labels = (count, setting["batch"], 1, *(setting["image_size"],) * 2), (count, setting["batch"])
        draw = torch.Generator().manual_seed(0)
        self.batch = [
            torch.rand(images, generator=draw).to(device),
            torch.randint(10, labels, generator=draw).to(device),
            torch.rand(images, generator=draw).to(device),
            torch.randint(10, labels, generator=draw).to(device),
            torch.rand(labels, generator=draw).to(device),
        ]
        self.count = count

    def modules(self) -> list[PlainCritic]:
        s = self.shape
        critics = [PlainCritic(s.image_size, s.channels, s.classes, s.width) for _ in range(self.count)]
        return [c.to(self.device).load_slice(self.params, self.buffers, k) for k, c in enumerate(critics)]

    def batched(self) -> Turn:
        """As the ensemble does it: recorded on a GPU, and in bfloat16 there."""
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        starts = range(0, self.count, self.chunk)
        updates = {start: Captured(self.in_place(slice(start, start + self.chunk), dtype)) for start in starts}
        return self._in_chunks(lambda part: updates[part.start](*(x[part] for x in self.batch)))

    def in_place(self, part: slice, dtype: torch.dtype) -> Callable[..., Tensor]:
        """An update of some critics as a function of their batch."""
        params, buffers = _cut(self.params, part), _cut(self.buffers, part)
        adam = init_adam(params)

        def update(*batch: Tensor) -> Tensor:
            for name, value in power_iteration(params, buffers).items():
                buffers[name].copy_(value)
            loss, grads = critic_gradients(params, buffers, *batch, **PENALTY, compute_dtype=dtype)
            adam_step(params, grads, adam, learning_rate=LEARNING_RATE, betas=BETAS)
            return loss

        return update

    def loop(self) -> Turn:
        critics = self.modules()
        optimizers = [torch.optim.Adam(c.parameters(), lr=LEARNING_RATE, betas=BETAS) for c in critics]

        def turn(seconds: float) -> int:
            end = time.perf_counter() + seconds
            for k, (critic, optimizer) in enumerate(zip(critics, optimizers)):
                critic.power_iteration()
                with cached():  # one division by the spectral norm an update, as in the other two
                    loss = plain_loss(critic, *(x[k] for x in self.batch), **PENALTY)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if time.perf_counter() > end:
                    break
            return k + 1

        return turn

    def vmapped(self) -> Turn:
        modules = self.modules()
        params, buffers = stack_module_state(modules)
        params = {name: value.detach() for name, value in params.items()}
        adam = init_adam(params)

        def critic_score(own: Parameters, rest: Buffers, images: Tensor, labels: Tensor) -> Tensor:
            return functional_call(modules[0], (own, rest), (images, labels))

        def loss(
            own: Parameters, rest: Buffers, real: Tensor, y: Tensor, fake: Tensor, z: Tensor, mix: Tensor
        ) -> Tensor:
            on_real, on_fake = critic_score(own, rest, real, y), critic_score(own, rest, fake, z)
            share = mix[:, None, None, None]
            slope = grad(lambda x: critic_score(own, rest, x, y).sum())(share * real + (1 - share) * fake)
            penalty = PENALTY["penalty_weight"] * ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()
            return on_fake.mean() - on_real.mean() + penalty + PENALTY["drift_penalty"] * (on_real**2).mean()

        all_grads = vmap(grad(loss))

        def update(part: slice) -> None:
            own, rest = _cut(params, part), _cut(buffers, part)
            for name, value in own.items():
                if name.endswith(".original"):
                    u, v = (rest[name.removesuffix("original") + f"0.{x}"] for x in ("_u", "_v"))
                    matrix = value.flatten(2)
                    u.copy_(F.normalize((matrix @ v[:, :, None])[:, :, 0], dim=1))
                    v.copy_(F.normalize((matrix.mT @ u[:, :, None])[:, :, 0], dim=1))
            grads = all_grads(own, rest, *(x[part] for x in self.batch))
            state = AdamState(
                exp_avg=_cut(adam.exp_avg, part),
                exp_avg_sq=_cut(adam.exp_avg_sq, part),
                steps=adam.steps[part],
            )
            adam_step(own, grads, state, learning_rate=LEARNING_RATE, betas=BETAS)

        return self._in_chunks(update)

    def _in_chunks(self, update: Callable[[slice], None]) -> Turn:
        def turn(seconds: float) -> int:
            end = time.perf_counter() + seconds
            for start in range(0, self.count, self.chunk):
                update(slice(start, start + self.chunk))
                if time.perf_counter() > end:
                    break
            return start + self.chunk

        return turn


def measure(setting: dict[str, Any], count: int, device: str, seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Critic updates a second of each contender, best of `repeats` turns that alternate between them."""
    bench = Bench(setting, count, device)
    turns = {"batched": bench.batched(), "loop": bench.loop(), "vmap": bench.vmapped()}
    rates, timed = dict.fromkeys(turns, 0.0), dict.fromkeys(turns, 0)
    for _ in range(EAGER + 1 if device == "cuda" else 0):
        turns["batched"](math.inf)  # until it is recorded
    for repeat in range(repeats + 1):  # the first one is a warm-up
        for name, turn in turns.items():
            begin = time.perf_counter()
            updates = turn(seconds)
            if device == "cuda":
                torch.cuda.synchronize()
            rate = updates / (time.perf_counter() - begin)
            if repeat and rate > rates[name]:
                rates[name], timed[name] = rate, updates
    return [
        {
            "form": name,
            "critics": count,
            "critics_timed": timed[name],
            "updates_per_second": round(rates[name], 1),
            "times_the_loop": round(rates[name] / rates["loop"], 2),
            "tflops": round(1e-12 * rates[name] * flops(bench.shape, setting["batch"]), 2),
        }
        for name in turns
    ]


def flops(shape: CriticShape, batch: int) -> float:
    """Of the products in one update: scores of 2 B images (there, and back to weights and images), penalty at B.

    The penalty goes there, back to the images, and through both once more, to weights and to values.
    """
    sides, channels, layers = shape.sides, shape.channels, []
    for layer, side in enumerate(sides[1:]):
        layers.append(2.0 * side**2 * 25 * channels * shape.width * 2**layer)
        channels = shape.width * 2**layer
    return batch * (8 * sum(layers) + 2 * sum(layers[1:]))


def _cut(stack: dict[str, Tensor], part: slice) -> dict[str, Tensor]:
    return {name: value[part] for name, value in stack.items()}


def _ceiling(side: int = 8192) -> float:
    """TFLOP/s of one large bfloat16 product."""
    one, other = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(10):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        one @ other
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return round(2e-12 * side**3 / sorted(times)[5], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, default=5.0, help="limit for one turn of one contender")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(2)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # the same for all contenders
    results = []
    print(f"{'setting':8}{'K':>5}  {'form':8}{'timed':>7}{'updates/s':>12}{'x loop':>9}")
    for name, setting in SETTINGS.items():
        for count in COUNTS:
            for row in measure(setting, count, args.device, args.seconds, args.repeats):
                results.append({"setting": name, **row})
                print(
                    f"{name:8}{count:5}  {row['form']:8}{row['critics_timed']:7}"
                    f"{row['updates_per_second']:12.1f}{row['times_the_loop']:9.2f}",
                    flush=True,
                )
    facts = {"platform": platform.platform(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    record(
        args.out,
        {
            **facts,
            "device": args.device,
            "tf32": args.device == "cuda",
            "bf16_ceiling_tflops": _ceiling() if args.device == "cuda" else None,
            "settings": SETTINGS,
            "results": results,
        },
    )


if __name__ == "__main__":
    main()
