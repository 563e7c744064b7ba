"""Participation, the answer of a step, and the state of an ensemble."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ensembles import BATCH, CLIP, COUNT, Fakes, changed_in_one_record, fix_participants, make, play, rows_of, same

from gswgan.critics.ensemble.ensemble import QUANTILES, Ensemble
from gswgan.data import ImageData


def test_participation_is_poisson_and_independent_of_history(mechanism_for, stripes: ImageData) -> None:
    one, other = make(stripes, mechanism_for), make(changed_in_one_record(stripes, 3), mechanism_for)
    play(one, steps=4)
    draws = np.zeros((4000, COUNT), dtype=bool)
    for step in range(4000):
        draws[step, one.draw_participants(step)] = True
        if step < 50:  # the same whatever was learnt before, and whatever the data
            assert np.array_equal(one.draw_participants(step), other.draw_participants(step))
    error = np.sqrt(0.4 * 0.6 / 4000)
    assert (abs(draws.mean(0) - 0.4) < 5 * error).all()
    counts = draws.sum(1)
    assert counts.var() == pytest.approx(COUNT * 0.4 * 0.6, rel=0.15)  # a fixed number would have variance 0
    correlation = np.corrcoef(draws.T) - np.eye(COUNT)
    assert abs(correlation).max() < 0.08  # drawing exactly one would give -1/(K-1) = -0.09 for every pair
    lag = np.corrcoef(draws[1:].ravel(), draws[:-1].ravel())[0, 1]
    assert abs(lag) < 0.03
    assert (counts == 0).any() or 0.6**COUNT * 4000 < 5  # nobody is drawn again until someone takes part


def test_an_empty_step_still_releases_noise(mechanism_for, stripes: ImageData) -> None:
    ensemble = make(stripes, mechanism_for)
    fix_participants(ensemble, [])
    ensemble.learn(0, Fakes())
    released = ensemble.upstream_gradient(*Fakes().fakes(BATCH, "scored"))
    assert released.std() == pytest.approx(1 / (0.4 * COUNT), rel=0.15)
    assert [entry.name for entry in ensemble._mechanism.ledger.entries] == ["step 0"]


def test_block_norm_is_bounded(mechanism_for, stripes: ImageData) -> None:
    """Critics with enormous gradients: each block still has norm at most C sqrt(B), and the sum is divided by qK."""
    ensemble = make(stripes, mechanism_for, noise_std=1e-9)
    play(ensemble, steps=2)
    for name in ensemble.params:
        if name.startswith("linear"):
            ensemble.params[name].mul_(1e6)
    rows = rows_of(ensemble)
    ensemble._blocks = lambda images, labels: iter([(rows * 1e6, None)])
    mean = ensemble.upstream_gradient(*Fakes().fakes(BATCH, "scored"))
    members = len(ensemble._participants)
    assert mean.flatten(1).norm(dim=1).max() <= members * CLIP / (0.4 * COUNT) + 1e-6
    unit = rows / rows.norm(dim=2, keepdim=True)
    assert torch.allclose(mean.flatten(1), unit.sum(0) / (0.4 * COUNT), atol=1e-5)


def test_a_state_holds_all_that_learning_changes_and_is_gone_on_from(mechanism_for, stripes: ImageData) -> None:
    one, other = make(stripes, mechanism_for), make(stripes, mechanism_for)
    play(one, 3)
    saved = one.state()
    held = [*one.params.values(), *one.buffers.values(), *one.adam.exp_avg.values(), *one.adam.exp_avg_sq.values()]
    assert {value.data_ptr() for value in saved.values()} == {value.data_ptr() for value in [*held, one.adam.steps]}
    with pytest.raises(KeyError):
        other.load_state({name: value for name, value in saved.items() if name != "steps"})
    other.load_state({name: value.clone() for name, value in saved.items()})
    for ensemble in (one, other):
        ensemble.learn(4, Fakes())
    assert same(one.state(), other.state())


def test_a_loaded_state_replaces_that_of_the_critics_in_the_slots(mechanism_for, stripes: ImageData) -> None:
    """One critic a step: the same one is asked before and after loading."""
    ensemble, other = (make(stripes, mechanism_for, count=2, rate=0.5, sampling="one", public=p) for p in (0, 1))
    fake, labels = Fakes().fakes(BATCH, "scored")
    members = np.array([0])
    before = ensemble.input_gradients(members, fake, labels)
    ensemble.load_state(other.state())
    after = ensemble.input_gradients(members, fake, labels)
    assert torch.equal(after, other.input_gradients(members, fake, labels))
    assert not torch.equal(after, before)


def test_coins_and_batches_are_secret_partitions_and_weights_public(mechanism_for, stripes: ImageData) -> None:
    """Who took part must not follow from the seed that is published; what is published must not need the key."""
    ours = make(stripes, mechanism_for)
    same_key, other_key = make(stripes, mechanism_for, public=1), make(stripes, mechanism_for, secret=4)

    def coins(ensemble: Ensemble) -> list[list[int]]:
        return [ensemble.draw_participants(step).tolist() for step in range(20)]

    assert coins(ours) == coins(same_key) != coins(other_key)
    assert torch.equal(ours.partitions.table, other_key.partitions.table)
    assert not torch.equal(ours.partitions.table, same_key.partitions.table)
    assert same(ours.state(), other_key.state())
    assert not same(ours.state(), same_key.state())
    for ensemble in (ours, other_key):
        fix_participants(ensemble, list(range(COUNT)))
        ensemble.learn(0, Fakes())
    assert not same(ours.state(), other_key.state())  # other batches


def test_the_papers_draw_is_one_critic_uniformly(mechanism_for, stripes: ImageData) -> None:
    ensemble = make(stripes, mechanism_for, sampling="one", rate=1.0, noise_std=1e-9)
    draws = [ensemble.draw_participants(step) for step in range(6000)]
    assert all(drawn.shape == (1,) for drawn in draws)
    counts = np.bincount(np.concatenate(draws), minlength=COUNT)
    expected = 6000 / COUNT
    assert ((counts - expected) ** 2 / expected).sum() < 31.3  # chi squared with 11 degrees of freedom, 0.1 %
    ensemble.learn(0, Fakes())
    (rows,) = rows_of(ensemble)
    clipped = rows / (rows.norm(dim=1, keepdim=True) / CLIP).clamp(min=1)
    mean = ensemble.upstream_gradient(*Fakes().fakes(BATCH, "scored"))
    assert torch.allclose(mean.flatten(1), clipped, atol=1e-6)  # divided by 1


def test_each_step_is_an_answer_of_its_own(mechanism_for, stripes: ImageData) -> None:
    ensemble = make(stripes, mechanism_for)
    fake, labels = Fakes().fakes(BATCH, "scored")
    released = []
    for step in (0, 1, 2):
        ensemble.learn(step, Fakes())
        released.append(ensemble.upstream_gradient(fake, labels))
    assert [entry.name for entry in ensemble._mechanism.ledger.entries] == ["step 0", "step 1", "step 2"]
    noise = torch.stack(released).flatten(1)
    assert abs(torch.corrcoef(noise) - torch.eye(3)).max() < 0.35


def test_the_private_log_has_the_gradient_norms_before_and_after_clipping(mechanism_for, stripes: ImageData) -> None:
    """The paper's figures 2 and A.1: the norms of all participants' rows, padding copies left out."""
    ensemble = make(stripes, mechanism_for, rate=1.0)
    play(ensemble, 1)
    fake, labels = torch.rand(BATCH, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(BATCH) % 3
    ensemble.upstream_gradient(fake, labels)
    norms = torch.cat([rows.norm(dim=2) for rows, _ in ensemble._blocks(fake, labels)])
    assert norms.shape == (COUNT, BATCH)
    found = ensemble.metrics()
    np.testing.assert_allclose(found["norm_before"], np.quantile(norms, QUANTILES), rtol=1e-6)
    np.testing.assert_allclose(found["norm_after"], np.minimum(found["norm_before"], CLIP), rtol=1e-6)
    assert found["norm_before"][0] < found["norm_before"][-1]
