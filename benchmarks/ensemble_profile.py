"""Where the time of the ensemble goes on a GPU: ceilings, convolutions, one update, one training step, start and stop.

Every part stands alone: one that fails is reported and the next goes on.

    python benchmarks/ensemble_profile.py --out profile.json
    python benchmarks/ensemble_profile.py --device cpu --tiny   # does the script itself work?
"""

from __future__ import annotations

import argparse
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ensemble import BETAS, LEARNING_RATE, PENALTY, Bench, flops
from gswgan.critics.ensemble import loss, network
from gswgan.critics.ensemble.adam import adam_step, init_adam
from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.ensemble.network import CriticShape, init_critics
from gswgan.critics.ensemble.stack import Stack
from gswgan.critics.ensemble.warm_start import WarmStart
from gswgan.data import make_image_data
from gswgan.generators import GeneratorSettings
from gswgan.generators.cuda_graphs import Captured
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.privacy import BatchStreams, Contribution, DrawnOne, GaussianMechanism, Ledger, Sampled, Streams
from gswgan.privacy.events import Gaussian
from gswgan.run.checkpoint import Checkpoint
from gswgan.run.cuda_graphs import CapturedAround
from record import record

Found = dict[str, Any]


class Profile:
    """The parts, in order of importance."""

    def __init__(self, device: str, *, tiny: bool) -> None:
        self.device, self.tiny = torch.device(device), tiny
        self.cuda = self.device.type == "cuda"
        self.width, self.side, self.batch = (4, 8, 4) if tiny else (64, 28, 32)
        self.critics = 6 if tiny else 64

    def parts(self) -> dict[str, Callable[[], Found]]:
        return {
            "ceilings": self.ceilings,
            "same numbers": self.same_numbers,
            "one update": self.one_update,
            "convolutions": self.convolutions,
            "tiles": self.tiles,
            "weights": self.weights,
            "ensemble step": lambda: self.training_step("ensemble"),
            "paper step": lambda: self.training_step("paper"),
            "warm start": self.warm_start,
            "kernels of an update": self.kernels,
            "start and stop": self.start_and_stop,
        }

    def seconds(self, work: Callable[[], object], *, least: float = 0.15, most: int = 50) -> float:
        """The median of a few calls after two that do not count."""
        for _ in range(2):
            work()
        self.wait()
        times: list[float] = []
        while len(times) < 3 or (sum(times) < least and len(times) < most):
            begin = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - begin)
        return float(np.median(times))

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def random(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=dtype)

    def ceilings(self) -> Found:
        n = 64 if self.tiny else 8192
        one, other = self.random(n, n, dtype=torch.bfloat16), self.random(n, n, dtype=torch.bfloat16)
        big = self.random(n, n, 4 if self.tiny else 8)
        copy = torch.empty_like(big)
        return {
            "bf16 TFLOP/s": 2e-12 * n**3 / self.seconds(lambda: one @ other),
            "tf32 TFLOP/s": 2e-12 * n**3 / self.seconds(lambda: one.float() @ other.float()),
            "copy TB/s": 2e-12 * big.nbytes / self.seconds(lambda: copy.copy_(big)),
        }

    def same_numbers(self) -> Found:
        """Gradients against the CPU in float32, relative to their length; captured against eager, to the last bit."""
        shape = CriticShape(image_size=28, channels=1, classes=10, width=16)
        found: Found = {}
        stream = torch.Generator().manual_seed(0)
        size = (3, 8, 1, 28, 28)
        real, fake = (torch.rand(size, generator=stream) for _ in range(2))
        labels = torch.randint(10, size[:2], generator=stream)
        batch = [real, labels, fake**3, labels, torch.rand(size[:2], generator=stream)]
        params, buffers = init_critics(shape, 3, seed=0)
        _, exact = loss.critic_gradients(params, buffers, *batch, **PENALTY)

        def there(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: value.to(self.device) for name, value in values.items()}

        for dtype in (torch.float32, torch.bfloat16):
            _, grads = loss.critic_gradients(
                there(params), there(buffers), *(x.to(self.device) for x in batch), **PENALTY, compute_dtype=dtype
            )
            errors = {n: float((g.cpu() - exact[n]).norm() / exact[n].norm()) for n, g in grads.items()}
            found[f"kernels {dtype}"] = max(errors.values()), max(errors, key=lambda n: errors[n])
        states = []
        for captured in (True, False):
            bench = self.bench(6)
            update = bench.in_place(slice(0, 6), torch.bfloat16)
            run = Captured(update) if captured else update
            for _ in range(8):
                run(*bench.batch)
            states.append(bench.params)
        found["captured is eager"] = all(torch.equal(a, b) for a, b in zip(states[0].values(), states[1].values()))
        return found

    def bench(self, critics: int, *, width: int = 0, batch: int = 0) -> Bench:
        setting = {"image_size": self.side, "width": width or self.width, "batch": batch or self.batch}
        return Bench({**setting, "chunk": {"cpu": critics, "cuda": critics}}, critics, self.device.type)

    def one_update(self) -> Found:
        """Critic updates a second, and TFLOP/s of the products that they need; against a loop over modules."""
        found: Found = {}
        cases = [("bf16", True, 64), ("bf16", False, 64), ("f32", True, 64), ("f32", False, 64)]
        cases += [("bf16", True, count) for count in (1, 16, 32, 128, 256)]
        for kind, captured, critics in cases:
            name = f"kernels {kind} {'captured' if captured else 'eager'} {critics} critics"
            try:
                bench = self.bench(min(critics, 6) if self.tiny else critics)
                update = bench.in_place(slice(0, bench.count), torch.bfloat16 if kind == "bf16" else torch.float32)
                run = Captured(update) if captured else update
                for _ in range(5):
                    run(*bench.batch)
                taken = self.seconds(lambda run=run, bench=bench: run(*bench.batch))
                found[name] = {
                    "ms": 1e3 * taken,
                    "updates/s": bench.count / taken,
                    "TFLOP/s": 1e-12 * bench.count * flops(bench.shape, self.batch) / taken,
                }
                if self.cuda:
                    found[name]["GiB"] = torch.cuda.max_memory_allocated() / 2**30
                    torch.cuda.reset_peak_memory_stats()
            except Exception as wrong:  # the next form may work
                found[name] = repr(wrong)[:300]
        bench = self.bench(8)
        turn = bench.loop()
        turn(0.5)
        self.wait()
        begin = time.perf_counter()
        done = turn(2.0)
        self.wait()
        found["loop over modules, f32, updates/s"] = done / (time.perf_counter() - begin)
        return found

    def layers(self) -> dict[str, tuple[int, int, int]]:
        """Name: inputs, outputs, side of the images."""
        sides = CriticShape(image_size=self.side, channels=1, classes=10, width=self.width).sides
        widths = [1, *(self.width * 2**layer for layer in range(len(sides) - 1))]
        return {f"conv{i + 1}": (widths[i], widths[i + 1], sides[i]) for i in range(len(sides) - 1)}

    def convolutions(self) -> Found:
        """TFLOP/s of a layer forward, backward to its images, backward to its weights, in all forms."""
        found: Found = {}
        critics, batch = self.critics, 2 * self.batch
        for name, (inputs, outputs, side) in self.layers().items():
            new = (side + 1) // 2
            work = 2e-12 * critics * batch * new**2 * 25 * inputs * outputs
            for kind in (torch.bfloat16, torch.float32):
                x = self.random(batch, critics * inputs, side, side, dtype=kind)
                y = self.random(batch, critics * outputs, new, new, dtype=kind)
                w = self.random(critics * outputs, inputs, 5, 5, dtype=kind)
                for order in (torch.contiguous_format, torch.channels_last):
                    a, b = x.contiguous(memory_format=order), y.contiguous(memory_format=order)
                    options = {"stride": 2, "padding": 2, "groups": critics}
                    self.note(
                        found, f"{name} {kind} grouped {order}", work,
                        lambda a=a, w=w, o=options: F.conv2d(a, w, **o),
                        lambda a=a, b=b, w=w, o=options: torch.nn.grad.conv2d_input(a.shape, w, b, **o),
                        lambda a=a, b=b, w=w, o=options: torch.nn.grad.conv2d_weight(a, w.shape, b, **o),
                    )  # fmt: skip
                own = self.random(critics, batch, side, side, inputs, dtype=kind)
                out = self.random(critics, batch, new, new, outputs, dtype=kind)
                weight = self.random(critics, outputs, 25 * inputs, dtype=kind)
                rows, flat = self.random(critics, batch * new**2, 25 * inputs, dtype=kind), out.flatten(1, 3)
                self.note(
                    found, f"{name} {kind} product of windows", work,
                    lambda rows=rows, weight=weight: torch.bmm(rows, weight.mT),
                    lambda flat=flat, weight=weight: torch.bmm(flat, weight),
                    lambda rows=rows, flat=flat: torch.bmm(flat.mT, rows),
                )  # fmt: skip
                self.our_kernels(found, f"{name} {kind} our kernels", work, own, out, weight)
        return found

    def our_kernels(self, found: Found, name: str, work: float, own: Tensor, out: Tensor, weight: Tensor) -> None:
        try:
            from gswgan.critics.ensemble import gpu_convolution as gpu
        except ImportError as wrong:
            found[name] = repr(wrong)
            return
        shape = own.shape[2], 5, 2, 2
        self.note(
            found, name, work,
            lambda: gpu.multiply(own, weight, None, shape),
            lambda: gpu.fold(out, weight, shape),
            lambda: gpu.correlate(out, own, shape),
        )  # fmt: skip

    def note(self, found: Found, name: str, work: float, *calls: Callable[[], object]) -> None:
        found[name] = []
        for call in calls:
            try:
                found[name].append(round(work / self.seconds(call, least=0.02, most=10), 1))
            except Exception as wrong:
                found[name].append(repr(wrong)[:120])

    def tiles(self) -> Found:
        """Our kernels with other tiles: TFLOP/s forward, to the images, to the weights."""
        from gswgan.critics.ensemble import gpu_convolution as gpu

        found: Found = {}
        usual, critics, batch = gpu._tiles, self.critics, 2 * self.batch
        tries: list[Found] = [
            {"num_stages": 4}, {"num_stages": 2}, {"ROWS": 64}, {"ROWS": 64, "num_warps": 4, "num_stages": 4},
            {"num_warps": 4}, {"num_warps": 8}, {"DEPTH": 32, "num_stages": 4},
        ]  # fmt: skip
        for name, (inputs, outputs, side) in list(self.layers().items())[1:]:
            new = (side + 1) // 2
            work = 2e-12 * critics * batch * new**2 * 25 * inputs * outputs
            own = self.random(critics, batch, side, side, inputs, dtype=torch.bfloat16)
            out = self.random(critics, batch, new, new, outputs, dtype=torch.bfloat16)
            weight = self.random(critics, outputs, 25 * inputs, dtype=torch.bfloat16)
            for other in tries:
                gpu._tiles = lambda *args, other=other: {**usual(*args), **other}
                self.our_kernels(found, f"{name} {other}", work, own, out, weight)
        gpu._tiles = usual
        return found

    def weights(self) -> Found:
        """Milliseconds of what happens to the weights in an update."""
        found: Found = {}
        bench = self.bench(self.critics)
        params, buffers, adam = bench.params, bench.buffers, init_adam(bench.params)
        grads = {name: torch.randn_like(value) for name, value in params.items()}
        options = {"learning_rate": LEARNING_RATE, "betas": BETAS}
        ms: Callable[[Callable[[], object]], float] = lambda work: 1e3 * self.seconds(work)  # noqa: E731
        found["bytes"] = sum(value.nbytes for value in params.values())
        found["adam"] = ms(lambda: adam_step(params, grads, adam, **options))
        found["power iteration"] = ms(lambda: network.power_iteration(params, buffers))
        found["normalize bf16"] = ms(lambda: network.normalize(params, buffers, torch.bfloat16))
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        normed = [weight for weight, _ in network.normalize(leaves, buffers, torch.bfloat16).convolutions]
        back, wanted = [torch.randn_like(w) for w in normed], [v for n, v in leaves.items() if n[:4] == "conv"]
        wanted = [value for value in wanted if value.ndim == 5]
        found["normalize backward"] = ms(lambda: torch.autograd.grad(normed, wanted, back, retain_graph=True))
        matrix, vector = params["conv2.weight"].flatten(2), buffers["conv2.v"]
        found["Wv of conv2 as product"] = ms(lambda: torch.bmm(matrix, vector[:, :, None]))
        found["Wv of conv2 as sum"] = ms(lambda: (matrix * vector[:, None, :]).sum(dim=2))
        pieces = [[v[k] for v in part.values() for k in range(bench.count)] for part in
                  (params, grads, adam.exp_avg, adam.exp_avg_sq)]  # fmt: skip
        steps = [adam.steps.float()[k] for _ in params for k in range(bench.count)]
        found["torch._fused_adam_ of slices"] = ms(
            lambda: torch._fused_adam_(
                *pieces, [], steps, lr=1e-4, beta1=0.5, beta2=0.9, weight_decay=0.0, eps=1e-8, amsgrad=False,
                maximize=False,
            )
        )  # fmt: skip
        many = 12 if self.tiny else 400
        stack = Stack.drawn(bench.shape, range(many), 0, self.device)
        members = np.sort(np.random.default_rng(0).permutation(many)[: self.critics])
        part = stack.copy(members)
        found["read participants"] = ms(lambda: part.read(stack, members))
        found["write participants"] = ms(lambda: stack.write(members, part))
        return found

    def made(self, preset: str, *, warm: WarmStart | None = None, count: int = 0) -> tuple[Ensemble, Generator]:
        """Critic and generator of a preset, on made data, with the mechanism and a ledger on the disk."""
        paper = preset == "paper"
        side, n = self.side, 240 if self.tiny else 60_000
        rng = np.random.default_rng(0)
        data = make_image_data(rng.integers(0, 256, (n, side, side), dtype=np.uint8), np.arange(n) % 10, classes=10)
        rows = 8 if self.tiny else (32 if paper else 64)
        contribution = Contribution(clip_norm=1.0, rows=rows)
        gaussian = Gaussian(noise_std=10.0, sensitivity=contribution.sensitivity("replace-one"))
        critics = count or (24 if self.tiny else 1000)
        event = DrawnOne(count=critics, event=gaussian) if paper else Sampled(rate=0.1, event=gaussian)
        folder, key = Path(tempfile.mkdtemp()), Streams(bytes(32), "profile")
        ledger = Ledger(folder / "ledger", observer="public", context=key.context, journal=folder / "journal")
        settings = EnsembleSettings(
            width=self.width if paper else max(4, self.width // 2),
            learning_batch=self.batch if paper else 2 * self.batch,
            precision="bfloat16",
        )
        ensemble = Ensemble(
            settings,
            CriticShape(image_size=side, channels=1, classes=10, width=settings.width),
            GaussianMechanism(contribution=contribution, event=event, ledger=ledger, streams=key),
            count=critics,
            public=key,
            batches=BatchStreams(key),
            device=self.device,
            warm_start=warm,
        )
        ensemble.prepare(data)
        narrow = 8 if self.tiny else (64 if paper else 128)
        generator = Generator(
            GeneratorSettings(architecture="resnet", width=narrow, latent=10, spectral_norm=paper),
            OptimizerSettings(learning_rate=1e-4, betas=(0.5, 0.9)),
            classes=10, channels=1, image_size=side, updates=1000, streams=key, device=self.device,
            mixed_precision=self.cuda,
        )  # fmt: skip
        return ensemble, generator

    def training_step(self, preset: str) -> Found:
        """Milliseconds of a step and of its parts, after the first ones (which record)."""
        ensemble, generator = self.made(preset)
        rows = ensemble._mechanism.contribution.rows
        spent: dict[str, list[float]] = {}

        def part(name: str, work: Callable[[], Any]) -> Any:
            self.wait()
            begin = time.perf_counter()
            result = work()
            self.wait()
            spent.setdefault(name, []).append(1e3 * (time.perf_counter() - begin))
            return result

        def update(codes: Tensor, labels: Tensor) -> None:
            fake = generator(codes, labels)
            generator.descend(fake, ensemble.upstream_gradient(fake, labels))

        around = CapturedAround(generator, ensemble) if self.cuda else update
        for step in range(12 if self.tiny else 40):
            part("learn", lambda step=step: ensemble.learn(step, generator))
            latents = part("latents", lambda step=step: generator.latents(rows, step))
            part("generator and release", lambda latents=latents: around(*latents))
        for name, call in self.inside(ensemble, generator, rows).items():
            for _ in range(6):
                part(name, call)
        self.wait()
        begin, first = time.perf_counter(), 1000
        steps = 4 if self.tiny else 30
        for step in range(first, first + steps):
            ensemble.learn(step, generator)
            around(*generator.latents(rows, step))
        self.wait()
        whole = 1e3 * (time.perf_counter() - begin) / steps
        medians = {
            name: float(np.median(times[3:] if len(times) < 20 else times[-20:])) for name, times in spent.items()
        }
        return {"ms a step": whole, "chunk": ensemble.chunk, **medians, "first steps": spent["learn"][:6]}

    def inside(self, ensemble: Ensemble, generator: Generator, rows: int) -> dict[str, Callable[[], Any]]:
        """What the parts of a step are made of."""
        fake, labels = generator.fakes(rows, "profile")
        members = ensemble._participants if len(ensemble._participants) else np.arange(1)
        blocks = list(ensemble._blocks(fake, labels))
        number = iter(range(10**6))
        mechanism = cast(GaussianMechanism, ensemble._mechanism)
        answer = mechanism.answer
        width = fake[0].numel()
        return {
            "of which pools of fakes": lambda: ensemble._fakes_by_class(generator, next(number)),
            "of which secret draws": lambda: ensemble._draws(members, next(number)),
            "of which judging": lambda: ensemble.input_gradients(members, fake, labels),
            "of which clip, sum, ledger, noise": lambda: answer(f"p {next(number)}", blocks, slots=rows, width=width),
            "of which noise": lambda: mechanism._streams.rounded_gaussian((rows, width), 1e9, "n", next(number)),
        }

    def warm_start(self) -> Found:
        """Seconds for one iteration of one chunk of critics, recorded, and what a warm start of 1000 would take."""
        found: Found = {}
        short, long = (2, 4) if self.tiny else (6, 26)
        local = GeneratorSettings(architecture="resnet", width=8 if self.tiny else 64, latent=10)
        times = []
        for iterations in (short, short, long):  # the first one compiles
            warm = WarmStart(iterations=iterations, generator=local, learning_rate=1e-4, betas=BETAS)
            begin = time.perf_counter()
            self.made("paper", warm=warm, count=self.critics)
            self.wait()
            times.append(time.perf_counter() - begin)
        each = (times[2] - times[1]) / (long - short)
        found["seconds an iteration"] = each
        found["critic updates/s"] = 5 * self.critics / each
        found["hours for 1000 critics, 2000 iterations"] = each * 2000 * 1000 / self.critics / 3600
        return found

    def kernels(self) -> Found:
        """Where an update spends its time, kernel by kernel (eager, so that names show)."""
        bench = self.bench(self.critics)
        update = bench.in_place(slice(0, bench.count), torch.bfloat16)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.cuda else [])]
        for _ in range(3):
            update(*bench.batch)
        self.wait()
        with profile(activities=activities) as seen:
            update(*bench.batch)
            self.wait()
        order = "self_cuda_time_total" if self.cuda else "self_cpu_time_total"
        events = sorted(seen.key_averages(), key=lambda e: -getattr(e, order.replace("cuda", "device"), 0.0))
        taken = [getattr(e, order.replace("cuda", "device"), 0.0) / 1e3 for e in events]
        rows = [[e.key[:110], e.count, round(ms, 3)] for e, ms in zip(events[:30], taken)]
        return {"ms in all": sum(taken), "kernel, calls, ms": rows}

    def start_and_stop(self) -> Found:
        """Seconds to draw 1000 critics, and to save and read them."""
        found: Found = {}
        for width in (self.width // 2, self.width):
            shape = CriticShape(image_size=self.side, channels=1, classes=10, width=max(2, width))
            begin = time.perf_counter()
            stack = Stack.drawn(shape, range(24 if self.tiny else 1000), 0, self.device)
            self.wait()
            found[f"draw, width {width}"] = time.perf_counter() - begin
            if width != self.width:
                checkpoint = Checkpoint(Path(tempfile.mkdtemp()) / "checkpoint", "plan")
                begin = time.perf_counter()
                checkpoint.save(1, {"critics": stack.tensors()})
                found[f"save, width {width}"] = time.perf_counter() - begin
                found["bytes saved"] = sum(value.nbytes for value in stack.tensors().values())
            del stack
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument("--only", nargs="*", help="the parts to run")
    parser.add_argument("--seconds", type=float, default=150.0, help="no part is begun after so many seconds")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    begin, results = time.perf_counter(), {}
    for name, part in Profile(args.device, tiny=args.tiny).parts().items():
        if (args.only and name not in args.only) or time.perf_counter() - begin > args.seconds:
            continue
        started = time.perf_counter()
        try:
            results[name] = part()
        except Exception:
            results[name] = {"failed": traceback.format_exc()[-1500:]}
        if args.device == "cuda":
            torch.cuda.empty_cache()
        print(f"\n== {name} ({time.perf_counter() - started:.1f} s)", flush=True)
        for key, value in results[name].items():
            show(key, value)
        record(args.out, {"device": args.device, "results": results})


def show(key: str, value: Any) -> None:
    if isinstance(value, dict):
        value = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items())
    if isinstance(value, list) and value and isinstance(value[0], list):
        value = "\n" + "\n".join("   " + "  ".join(map(str, row)) for row in value)
    print(f"{key}: {value:.5g}" if isinstance(value, float) else f"{key}: {value}", flush=True)


if __name__ == "__main__":
    main()
