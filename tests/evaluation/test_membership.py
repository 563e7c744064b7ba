from __future__ import annotations

import numpy as np
import pytest

from gswgan import load_data
from gswgan.evaluation import membership as module
from gswgan.evaluation.membership import (
    auc,
    membership,
    membership_scores,
    nearest_distances,
    nearest_records,
    nearness,
    tpr_at,
)


def test_nearest_distances_are_those_of_a_plain_double_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 7)
    monkeypatch.setattr(module, "_COLUMNS", 5)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 3, 8, 8), dtype=np.uint8)
    records = rng.integers(0, 256, (33, 3, 8, 8), dtype=np.uint8)
    records[31] = images[4]
    plain = [min(np.linalg.norm(a / 255 - b / 255) for b in records) for a in images]
    found = nearest_distances(images, records)
    np.testing.assert_allclose(found, plain, rtol=1e-12, atol=1e-12)
    assert found[4] == 0


def test_auc_and_tpr_agree_with_scikit_learn_ties_included() -> None:
    from sklearn.metrics import roc_auc_score, roc_curve

    rng = np.random.default_rng(1)
    for steps in (40, 10**9):
        members, others = rng.integers(0, steps, 300) + steps / 10, rng.integers(0, steps, 500) + 0.0
        truth, scores = np.repeat([1, 0], [300, 500]), np.concatenate([members, others])
        assert auc(members, others) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
        false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
        for rate in (0.01, 0.05, 0.2):
            assert tpr_at(members, others, rate) == pytest.approx(true[false <= rate].max(), abs=1e-12)


def test_copies_of_100_training_images_stand_out() -> None:
    """The set knows 100 of the training records by heart; the rest of it comes from records that nobody accuses."""
    train, test = load_data("digits").images, load_data("digits", split="test").images
    public, others, known = test[:160], test[160:], train[:600]
    honest = train[600:]
    leaking = np.concatenate([honest, known[:100]])

    copied, held_out = (membership_scores(leaking, records, public) for records in (known[:100], others))
    assert auc(copied, held_out) > 0.99
    assert tpr_at(copied, held_out, 0.01) > 0.9
    copied, held_out = (membership_scores(honest, records, public) for records in (known[:100], others))
    assert 0.35 < auc(copied, held_out) < 0.65
    assert tpr_at(copied, held_out, 0.01) < 0.1

    caught, clean = membership(leaking, known, test), membership(honest, known, test)
    assert caught.tpr_at_1_percent_fpr > 0.15  # 100 of 600
    assert clean.tpr_at_1_percent_fpr < 0.08
    assert caught.auc > clean.auc + 0.04
    assert (caught.members, caught.non_members) == (600, 180)


def test_the_attack_allows_for_records_that_are_near_to_everything() -> None:
    """Half of the records are almost alike, half are not; a near copy of a wild one is as telling as of a tame one."""
    rng = np.random.default_rng(2)
    wild = rng.integers(0, 256, (300, 1, 8, 8), dtype=np.uint8)
    tame = rng.integers(100, 104, (300, 1, 8, 8), dtype=np.uint8)
    public, others = np.concatenate([wild[:100], tame[:100]]), np.concatenate([wild[100:200], tame[100:200]])
    copies = np.clip(wild[200:].astype(int) + rng.integers(-9, 10, (100, 1, 8, 8)), 0, 255).astype(np.uint8)
    synthetic = np.concatenate([copies, tame[200:]])
    members, held_out = (membership_scores(synthetic, records, public) for records in (wild[200:], others))
    assert tpr_at(members, held_out, 0.01) > 0.95
    bare = tpr_at(-nearest_distances(wild[200:], synthetic), -nearest_distances(others, synthetic), 0.01)
    assert bare < 0.05  # what the distance alone would find


def test_nearness_looks_at_every_block_of_the_training_set() -> None:
    far, near, mine = (np.full((1, 1, 8, 8), value, np.uint8) for value in (255, 40, 10))
    held_out = np.repeat(near, 10, 0)
    found = nearness(mine, np.concatenate([mine, np.repeat(far, 29, 0)]), held_out)
    assert found.closer_to_train == pytest.approx(1 / 3)  # its original is in one block of three
    assert nearness(mine, np.repeat(mine, 25, 0), held_out).closer_to_train == 1
    assert nearness(mine, np.repeat(near, 25, 0), held_out).closer_to_train == 0.5  # ties count half


def test_nearness_sees_copies_and_clears_an_independent_set() -> None:
    train, test = load_data("digits").images, load_data("digits", split="test").images
    known, independent = train[:700], train[700:]
    clean = nearness(independent, known, test)
    assert 0.4 < clean.closer_to_train < 0.6
    assert clean.train == pytest.approx(clean.held_out, rel=0.1)
    copies = nearness(known, known, test)
    assert copies.closer_to_train > 0.7  # a block of 360 holds the original of half of them
    everything = nearness(test[:300], test[:300], train)
    assert everything.closer_to_train == 1
    assert everything.train == 0 < everything.held_out


def test_near_copies_are_counted_against_held_out_records() -> None:
    train, test = load_data("digits").images, load_data("digits", split="test").images
    honest, copied = train[700:], np.concatenate([train[750:], train[:50]])
    clean, caught = (nearest_records(images, train[:700], test) for images in (honest, copied))
    assert clean.near_copies < 0.05
    assert caught.near_copies >= 50 / len(copied)
    assert clean.record == pytest.approx(clean.record_of_held_out, rel=0.1)  # both are real
    assert caught.record_of_held_out == clean.record_of_held_out
    assert nearest_records(train[:700], train[:700], test).record == 0
    nearest = np.sort(nearest_distances(test, train[:700]))
    assert nearest_records(test, train[:700], test).near_copies == np.mean(nearest <= nearest[len(test) // 100 - 1])
