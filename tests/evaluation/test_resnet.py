from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import tiny_images
from gswgan import load_data
from gswgan.evaluation import classifiers
from gswgan.evaluation.resnet import ResNet18, resnet_predictions


def test_it_is_the_resnet_18_of_cifar() -> None:
    """The number of weights that is known for CIFAR-10, and 18 layers with weights besides the shortcuts."""
    with torch.device("meta"):
        network = ResNet18(3, 10)
    assert sum(weight.numel() for weight in network.parameters()) == 11_173_962
    layers = [name for name, _ in network.named_modules() if "shortcut" not in name]
    modules = dict(network.named_modules())
    assert sum(isinstance(modules[name], torch.nn.Conv2d | torch.nn.Linear) for name in layers) == 18
    sides = []
    hook = lambda module, inputs, output: sides.append(output.shape[-1])  # noqa: E731
    for module in network.body:
        module.register_forward_hook(hook)
    assert network(torch.zeros(2, 3, 32, 32, device="meta")).shape == (2, 10)
    assert sides[0] == sides[4] == 32  # no pooling at the start
    assert sides[10] == 4


def test_it_learns_what_can_be_learnt_and_leaves_the_random_state(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = load_data("digits"), load_data("digits", split="test")
    before = torch.get_rng_state()
    options = {"classes": 10, "width": 8, "steps": 150}
    guesses = resnet_predictions(train.images, train.labels, test.images, **options)
    assert (guesses == test.labels).mean() > 0.9
    assert torch.equal(before, torch.get_rng_state())
    wrong = np.random.default_rng(0).permutation(train.labels)
    assert (resnet_predictions(train.images, wrong, test.images, **options) == test.labels).mean() < 0.25


def test_few_images_of_an_odd_size_in_colour() -> None:
    made = tiny_images(24, seed=1)
    images = np.pad(made.images, ((0, 0), (0, 0), (0, 5), (0, 5))).repeat(3, axis=1)
    found = resnet_predictions(images, made.labels, images[:7], classes=3, width=4, steps=12)
    assert found.shape == (7,)
    assert set(found) <= {0, 1, 2}


def test_the_recipe_follows_the_number_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class StopError(Exception):
        pass

    def schedule(optimizer: object, rate: float, *, total_steps: int, pct_start: float) -> None:
        asked.append(total_steps)
        raise StopError

    monkeypatch.setattr(torch.optim.lr_scheduler, "OneCycleLR", schedule)
    for number in (13_780, 50_000):
        images, labels = np.zeros((number, 1, 8, 8), np.uint8), np.zeros(number, np.int64)
        with pytest.raises(StopError):
            classifiers.predictions("resnet", images, labels, images[:1], classes=2)
    assert asked == [1000, 20 * 97]
