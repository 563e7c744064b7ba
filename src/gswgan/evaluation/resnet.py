"""A ResNet-18 for small images (He et al. 2016, with a 3x3 first layer and no pooling after it): the second classifier.

The paper's small CNN is itself the limit on colour images; this one is trained as is usual for CIFAR-10. Images are
shifted and never mirrored, because a mirrored digit or organ is another one. Nothing is chosen on the test set: the
recipe is fixed and the last step is taken.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from gswgan.evaluation.reference_classifier import shifted

EPOCHS, MIN_STEPS, BATCH = 20, 1000, 512
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.2, 0.9, 5e-4
WIDTH = 64


class _Block(nn.Module):
    """Two 3x3 convolutions with batch norm beside a shortcut: the identity, or a 1x1 convolution to another shape."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            other = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(other, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet18(nn.Module):
    """Four stages of two blocks, each with twice the width of the one before; 11.2 million weights at width 64."""

    def __init__(self, channels: int, classes: int, width: int = WIDTH) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
        layers.append(nn.ReLU())
        inputs = width
        for stage in range(4):
            outputs = width * 2**stage
            layers += [_Block(inputs, outputs, 1 if stage == 0 else 2), _Block(outputs, outputs, 1)]
            inputs = outputs
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        """Scores [n, classes] of images in [-1, 1]."""
        return self.body(images)


def resnet_predictions(
    images: np.ndarray,
    labels: np.ndarray,
    test_images: np.ndarray,
    *,
    classes: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    width: int = WIDTH,
    steps: int | None = None,
) -> np.ndarray:
    """The classes that a trained ResNet-18 gives the test images; images are uint8 [n, channels, side, side].

    SGD with one cycle up to 0.2, batches of 512, 20 epochs or at least 1,000 steps; on a GPU in bfloat16. The global
    random state is left as it was.
    """
    device = torch.device(device)
    batch = max(2, min(BATCH, len(images) // 8))
    per_epoch = len(images) // batch  # the rest of an epoch is left out: batch norm wants full batches
    steps = max(EPOCHS * per_epoch, MIN_STEPS) if steps is None else steps
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ResNet18(images.shape[1], classes, width)
    model.to(device).train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.2)
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.from_numpy(images).to(device), torch.from_numpy(labels.astype(np.int64)).to(device)
    order = torch.zeros(0, dtype=torch.int64)
    for step in range(steps):
        if (at := step % per_epoch) == 0:
            order = torch.randperm(len(x), generator=generator)
        rows = order[at * batch : (at + 1) * batch].to(device)
        moved = shifted(x[rows], generator, max(1, x.shape[-1] // 8))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = nn.functional.cross_entropy(model(_scaled(moved)), y[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        parts = torch.from_numpy(test_images).split(1000)
        return torch.cat([model(_scaled(part.to(device))).argmax(1).cpu() for part in parts]).numpy()


def _scaled(images: Tensor) -> Tensor:
    return (images.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)
