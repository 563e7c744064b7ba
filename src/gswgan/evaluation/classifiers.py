"""Downstream classifiers: trained on synthetic images, tested on real ones.

Such a figure is computed on real data, so it is private: it is shown only where asked for, and marked.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import nn


def logistic_accuracy(
    images: np.ndarray, labels: np.ndarray, test_images: np.ndarray, test_labels: np.ndarray
) -> float:
    """Accuracy of a logistic regression on pixels in [0, 1]; images are uint8 [n, ...]."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    def flat(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), -1).astype(np.float64) / 255

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(max_iter=300).fit(flat(images), labels)
    return float(model.score(flat(test_images), test_labels))


class SmallCNN(nn.Module):
    """The appendix's CNN: two convolutions of 32 and 64 kernels with ReLU and dropout, then a linear head."""

    def __init__(self, channels: int, image_size: int, classes: int) -> None:
        super().__init__()
        side = image_size // 2 // 2
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
            nn.Flatten(), nn.Linear(64 * side * side, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, classes),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores [n, classes]."""
        return self.body(images)


def cnn_accuracy(
    images: np.ndarray,
    labels: np.ndarray,
    test_images: np.ndarray,
    test_labels: np.ndarray,
    *,
    classes: int,
    epochs: int = 10,
    seed: int = 0,
    device: str = "cpu",
) -> float:
    """Accuracy of the small CNN; images are uint8 [n, channels, side, side]."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SmallCNN(images.shape[1], images.shape[2], classes).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
        x, y = torch.from_numpy(images).to(device), torch.from_numpy(labels.astype(np.int64)).to(device)
        for _ in range(epochs):
            for pick in torch.randperm(len(x)).split(128):
                rows = pick.to(device)
                loss = nn.functional.cross_entropy(model(x[rows].float() / 255), y[rows])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        guesses = [
            model(part.to(device).float() / 255).argmax(1).cpu() for part in torch.from_numpy(test_images).split(1000)
        ]
    return float((torch.cat(guesses).numpy() == test_labels).mean())
