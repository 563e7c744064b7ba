from __future__ import annotations

import numpy as np

from conftest import tiny_images
from gswgan.evaluation.classifiers import cnn_accuracy, logistic_accuracy


def test_classifiers_learn_what_can_be_learnt_and_nothing_else() -> None:
    train, test = tiny_images(300, seed=1), tiny_images(90, seed=2)
    shuffled = np.random.default_rng(0).permutation(train.labels)
    assert logistic_accuracy(train.images, train.labels, test.images, test.labels) > 0.95
    assert logistic_accuracy(train.images, shuffled, test.images, test.labels) < 0.7
    assert cnn_accuracy(train.images, train.labels, test.images, test.labels, classes=3, epochs=8) > 0.95
    assert cnn_accuracy(train.images, shuffled, test.images, test.labels, classes=3, epochs=8) < 0.7
