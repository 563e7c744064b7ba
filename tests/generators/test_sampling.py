"""Images drawn on a CPU: by several threads, the same whatever their number."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gswgan.generators import GeneratorSettings, build_network
from gswgan.generators.denoised import latent_size
from gswgan.generators.sampling import CPU_BATCH, draw_images, latent_codes
from gswgan.release.samples import LEVELS

WAIT = 60


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def made(architecture: str, kind: str, width: int = 4) -> tuple[GeneratorSettings, nn.Module]:
    """An untrained network for images of 16x16, with weights that matter."""
    latent = latent_size(16 * 16) if architecture == "denoiser" else 10
    settings = GeneratorSettings(architecture=architecture, width=width, latent=latent, latent_kind=kind)
    torch.manual_seed(0)
    network = build_network(settings, classes=3, channels=1, image_size=16).eval()
    with torch.no_grad():
        for name, value in network.named_parameters():
            if name.endswith("last"):  # of a denoiser: they begin at zero, which would hide the layers before them
                value.normal_(std=value.shape[1] ** -0.5)
    return settings, network


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("dcgan", "normal"), ("smooth-resnet", "bernoulli"), ("mlp", "normal"), ("denoiser", "normal")],
)
def test_images_depend_neither_on_threads_nor_on_batches(architecture, kind) -> None:
    settings, network = made(architecture, kind)
    labels = np.arange(3 * CPU_BATCH + 5) % 3
    drawn = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        drawn.append(draw_images(network, settings, labels, np.random.default_rng(7)))
    assert all((images == drawn[0]).all() for images in drawn)
    assert torch.get_num_threads() == 3
    with torch.no_grad():  # in one batch, as it was done before
        codes = latent_codes(len(labels), settings.latent, settings.latent_kind, np.random.default_rng(7))
        at_once = (network(codes, torch.from_numpy(labels)) * 255).round().numpy()
    assert abs(at_once - drawn[0]).max() <= 1  # where another order of sums rounds to the next level
    assert (at_once == drawn[0]).mean() > 0.999


@pytest.mark.gpu
@pytest.mark.parametrize(("architecture", "width"), [("denoiser", 32), ("smooth-resnet", 64), ("dcgan", 16)])
def test_a_gpu_draws_what_a_cpu_draws(architecture: str, width: int) -> None:
    """To the tolerance that `gswgan verify` allows for a set of images in a bundle."""
    settings, network = made(architecture, "normal", width)
    labels, before = np.arange(60) % 3, torch.backends.cudnn.allow_tf32
    on_cpu = draw_images(network, settings, labels, np.random.default_rng(7)).astype(int)
    on_gpu = draw_images(network.cuda(), settings, labels, np.random.default_rng(7)).astype(int)
    assert abs(on_cpu - on_gpu).max() <= LEVELS
    assert torch.backends.cudnn.allow_tf32 == before


class Network(nn.Module):
    """Calls `look` for each batch, and draws black images."""

    def __init__(self, look) -> None:
        super().__init__()
        self.weight, self.look = nn.Parameter(torch.zeros(1)), look

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        self.look()
        return torch.zeros(len(labels), 1, 2, 2)


SETTINGS = GeneratorSettings(architecture="dcgan", width=4)


def test_two_threads_draw_two_batches_at_the_same_time() -> None:
    torch.set_num_threads(2)
    together, inside = threading.Barrier(2), []

    def look() -> None:
        try:
            together.wait(WAIT)
            inside.append(torch.get_num_threads())
        except threading.BrokenBarrierError:
            inside.append(None)

    told: list[int] = []
    labels = np.zeros(2 * CPU_BATCH, int)
    images = draw_images(Network(look), SETTINGS, labels, np.random.default_rng(0), progress=told.append)
    assert inside == [1, 1]
    assert told == [CPU_BATCH, 2 * CPU_BATCH]
    assert len(images) == len(labels)


def test_an_error_in_a_thread_is_raised_and_the_number_of_threads_is_as_before() -> None:
    torch.set_num_threads(2)

    def look() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        draw_images(Network(look), SETTINGS, np.zeros(3 * CPU_BATCH, int), np.random.default_rng(0))
    assert torch.get_num_threads() == 2
    found: list[int] = []
    late = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    late.start()
    late.join(WAIT)
    assert found == [2]


def test_with_one_thread_no_other_begins() -> None:
    """A process that was forked, such as a worker of a DataLoader, may hang in a product that a new thread computes."""
    before, inside = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        look = Network(lambda: inside.append(threading.current_thread()))
        draw_images(look, SETTINGS, np.zeros(2 * CPU_BATCH, int), np.random.default_rng(0))
    finally:
        torch.set_num_threads(before)
    assert inside == [threading.current_thread()] * 2
