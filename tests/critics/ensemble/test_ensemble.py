from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from conftest import key_of, tiny_images
from gswgan.critics.ensemble import learners as critics
from gswgan.critics.ensemble.ensemble import QUANTILES, Ensemble
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.ensemble.network import CriticShape
from gswgan.critics.ensemble.partitions import Partitions
from gswgan.data import ImageData
from gswgan.privacy import BatchStreams, Contribution, DrawnOne, GaussianMechanism, Sampled, Streams
from gswgan.privacy.events import Gaussian

CPU = torch.device("cpu")
SETTINGS = EnsembleSettings(width=4, updates=2, learning_batch=4, learning_rate=1e-3)
SHAPE = CriticShape(image_size=8, channels=1, classes=3, width=4)
COUNT, BATCH, CLIP = 12, 5, 1.0


class Fakes:
    """A generator that is public and fixed: its fakes depend on the index alone."""

    def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
        rng = Streams.public(5).generator("fakes", *index)
        images = torch.from_numpy(rng.random((count, 1, 8, 8), dtype=np.float32))
        return images, torch.from_numpy(rng.permutation(np.resize(np.arange(3), count)))


def make(
    data: ImageData, mechanism_for, *, rate: float = 0.4, count: int = COUNT, secret: int = 3, **changes
) -> Ensemble:
    contribution = Contribution(clip_norm=CLIP, rows=BATCH)
    gaussian = Gaussian(noise_std=changes.pop("noise_std", 1.0), sensitivity=contribution.sensitivity("replace-one"))
    sampling, public = changes.pop("sampling", "poisson"), changes.pop("public", 0)
    events = {
        "all": gaussian,
        "one": DrawnOne(count=count, event=gaussian),
        "poisson": Sampled(rate=rate, event=gaussian),
    }
    mechanism = mechanism_for(contribution, event=events[sampling], key=secret)
    device = changes.pop("device", CPU)
    ensemble = Ensemble(
        dataclasses.replace(SETTINGS, **changes), SHAPE, mechanism, count=count, public=Streams.public(public),
        batches=BatchStreams(key_of(secret)), device=device,
    )  # fmt: skip
    ensemble.prepare(data)
    return ensemble


def play(ensemble: Ensemble, steps: int = 6) -> None:
    for step in range(steps):
        ensemble.learn(step, Fakes())  # type: ignore[arg-type]


def critic_state(ensemble: Ensemble, k: int) -> dict[str, torch.Tensor]:
    return {name: value[k].clone() for name, value in ensemble.state().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def changed_in_one_record(data: ImageData, index: int) -> ImageData:
    images, labels = data.images.copy(), data.labels.copy()
    images[index], labels[index] = 255 - images[index], (labels[index] + 1) % 3
    return dataclasses.replace(data, images=images, labels=labels)


def test_changing_one_record_changes_exactly_one_critic(mechanism_for, stripes: ImageData) -> None:
    """With the released gradients of a first run replayed (here: fakes that depend on nothing private)."""
    record = 17
    first = make(stripes, mechanism_for)
    second = make(changed_in_one_record(stripes, record), mechanism_for)
    (owner,) = [k for k in range(COUNT) if record in first.partitions.table[k].tolist()]
    play(first)
    play(second)
    different = [k for k in range(COUNT) if not same(critic_state(first, k), critic_state(second, k))]
    assert different == [owner]
    rows_first = torch.cat([rows for rows, _ in blocks(first)])
    rows_second = torch.cat([rows for rows, _ in blocks(second)])
    members = first._participants.tolist()
    for place, k in enumerate(members):
        assert torch.equal(rows_first[place], rows_second[place]) == (k != owner)


def blocks(ensemble: Ensemble):
    fake, labels = Fakes().fakes(BATCH, "judged")
    return list(ensemble._blocks(fake, labels))


def test_the_check_finds_a_critic_that_sees_another_shard(mechanism_for, stripes: ImageData) -> None:
    """The same comparison with a leaking shard: more than one critic changes."""
    leaky = [make(stripes, mechanism_for), make(changed_in_one_record(stripes, 17), mechanism_for)]
    for ensemble in leaky:
        table = ensemble.partitions.table.clone()
        table[:, 0] = 17  # every critic may draw the changed record
        ensemble.partitions = Partitions(table=table, sizes=ensemble.partitions.sizes)
        play(ensemble, steps=10)
    different = [k for k in range(COUNT) if not same(critic_state(leaky[0], k), critic_state(leaky[1], k))]
    assert len(different) > 1


@pytest.mark.parametrize("threads", [1, 2])
def test_a_critic_is_bit_identical_whoever_takes_part(mechanism_for, stripes: ImageData, threads: int) -> None:
    """Critic 4 with all others, and with a few: the same weights and the same gradient, bit for bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        results = []
        for others in ([0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11], [11], [], [8, 9]):
            ensemble = make(stripes, mechanism_for)
            ensemble.draw_participants = lambda step, chosen=others: np.array(sorted([4, *chosen]))  # type: ignore[method-assign]
            play(ensemble, steps=3)
            place = ensemble._participants.tolist().index(4)
            row = torch.cat([rows for rows, _ in blocks(ensemble)])[place]
            results.append((critic_state(ensemble, 4), row))
        for state, row in results[1:]:
            assert same(results[0][0], state)
            assert torch.equal(results[0][1], row)
    finally:
        torch.set_num_threads(before)


def test_a_critic_never_sees_another_shard(mechanism_for, stripes: ImageData) -> None:
    ensemble = make(stripes, mechanism_for)
    own = [set(row.tolist()) for row in ensemble.partitions.table]
    assert sum(map(len, own)) == len(set().union(*own)) == 96  # disjoint and exhaustive
    uniform = np.random.default_rng(0).random((COUNT, 500))
    uniform[:, 0], uniform[:, 1] = 0.0, np.nextafter(1.0, 0.0)
    rows = ensemble.records(np.arange(COUNT), uniform)
    for k in range(COUNT):
        assert set(rows[k].tolist()) == own[k]


def test_shards_of_persons_keep_each_person_together(mechanism_for) -> None:
    persons = np.repeat(np.arange(24), [2, 6] * 12)
    data = dataclasses.replace(tiny_images(96), persons=persons)
    shards = Partitions.of(data, 5, 0, CPU)
    seen: dict[int, int] = {}
    for k in range(5):
        for record in shards.table[k][: shards.sizes[k]].tolist():
            assert seen.setdefault(int(persons[record]), k) == k
    assert len(seen) == 20  # 24 // 5 persons a shard, the remainder unused


def test_a_person_without_records_adds_nothing_and_moves_nobody(mechanism_for, stripes: ImageData) -> None:
    """A client that does not belong: its shard is empty, and it must not learn from, or answer for, anybody else."""
    ids = tuple(f"client-{k}" for k in range(COUNT))
    whole = dataclasses.replace(stripes, persons=np.arange(stripes.n) % COUNT, person_ids=ids)
    stays = whole.persons != 5
    part = dataclasses.replace(
        whole, images=whole.images[stays], labels=whole.labels[stays], persons=whole.persons[stays]
    )
    first, second = (make(data, mechanism_for, rate=1.0, sampling="all") for data in (whole, part))
    (gone,) = np.flatnonzero(second.partitions.sizes == 0)
    assert set(whole.persons[first.partitions.table[gone].numpy()]) == {5}
    play(first, steps=2)
    play(second, steps=2)
    assert second._participants.tolist() == [k for k in range(COUNT) if k != gone]
    rows = [torch.cat([rows for rows, _ in blocks(ensemble)]) for ensemble in (first, second)]
    assert torch.equal(rows[0][second._participants], rows[1])
    alone = make(dataclasses.replace(part, images=part.images[:0], labels=part.labels[:0], persons=part.persons[:0]),
                 mechanism_for, rate=1.0, sampling="all")  # fmt: skip
    play(alone, steps=1)
    assert blocks(alone) == []


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
    ensemble.draw_participants = lambda step: np.empty(0, np.int64)  # type: ignore[method-assign]
    ensemble.learn(0, Fakes())  # type: ignore[arg-type]
    fake, labels = Fakes().fakes(BATCH, "judged")
    released = ensemble.upstream_gradient(fake, labels)
    assert released.std() == pytest.approx(1 / (0.4 * COUNT), rel=0.15)
    assert [entry.name for entry in mechanism_of(ensemble).ledger.entries] == ["step 0"]


def mechanism_of(ensemble: Ensemble) -> GaussianMechanism:
    return ensemble._mechanism


def test_block_norm_is_bounded(mechanism_for, stripes: ImageData) -> None:
    """Critics with enormous gradients: each block still has norm at most C sqrt(B), and the sum is divided by qK."""
    ensemble = make(stripes, mechanism_for, noise_std=1e-9)
    play(ensemble, steps=2)
    for name in ensemble.params:
        if name.startswith("linear"):
            ensemble.params[name].mul_(1e6)
    original = blocks(ensemble)
    big = [(rows * 1e6, None) for rows, _ in original]
    ensemble._blocks = lambda images, labels: iter(big)  # type: ignore[method-assign]
    fake, labels = Fakes().fakes(BATCH, "judged")
    mean = ensemble.upstream_gradient(fake, labels)
    members = len(ensemble._participants)
    assert mean.flatten(1).norm(dim=1).max() <= members * CLIP / (0.4 * COUNT) + 1e-6
    directions = torch.cat([rows for rows, _ in original])
    unit = directions / directions.norm(dim=2, keepdim=True)
    assert torch.allclose(mean.flatten(1), unit.sum(0) / (0.4 * COUNT), atol=1e-5)


def test_padding_neither_drops_nor_repeats_anyone(mechanism_for, stripes: ImageData) -> None:
    """A chunk is filled up with copies, and a copy that counted would double its critic's sensitivity."""
    ensemble = make(stripes, mechanism_for)
    assert 1 < ensemble.chunk < COUNT
    alone = {}
    for k in range(COUNT):
        ensemble._participants = np.array([k])
        (alone[k],) = torch.cat([rows for rows, _ in blocks(ensemble)])  # one critic, one block
    for members in ([3], [0, 5], list(range(ensemble.chunk)), list(range(ensemble.chunk + 1)), list(range(COUNT))):
        ensemble._participants = np.array(members)
        found = torch.cat([rows for rows, _ in blocks(ensemble)])
        assert len(found) == len(members)
        for row, k in zip(found, members):
            assert torch.equal(row, alone[k])


def test_what_fills_up_a_chunk_touches_nobody(mechanism_for, stripes: ImageData) -> None:
    """Padding gone mad, before it learns and before it judges: no critic and no released row is any different."""
    members = np.array([1, 4, 7])
    results = []
    for spoil in (False, True):
        ensemble = make(stripes, mechanism_for)
        ensemble.draw_participants = lambda step: members  # type: ignore[method-assign]
        assert len(members) < ensemble.chunk
        if spoil:
            original = ensemble._slots_of

            def spoilt(part, real, original=original):
                slots = original(part, real)
                for value in slots.critics.tensors().values():
                    value[real:] = float("nan") if value.is_floating_point() else 10**6
                return slots

            ensemble._slots_of = spoilt  # type: ignore[method-assign]
        play(ensemble, steps=2)
        results.append((ensemble.state(), torch.cat([rows for rows, _ in blocks(ensemble)])))
    assert same(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert len(results[1][1]) == len(members)


def test_where_all_take_part_nothing_is_copied_and_nothing_differs(mechanism_for, stripes: ImageData) -> None:
    everyone, some = make(stripes, mechanism_for, rate=1.0), make(stripes, mechanism_for, rate=1.0)
    assert everyone.chunk == COUNT
    some.chunk = 5  # slots of five
    for ensemble in (everyone, some):
        play(ensemble, steps=2)
    assert "_chunk" not in vars(everyone)
    assert same(everyone.state(), some.state())
    fake, labels = Fakes().fakes(BATCH, "judged")
    order = np.random.default_rng(0).permutation(COUNT)
    for members in (np.arange(COUNT), order, order[:3]):
        expected = torch.cat([some.input_gradients(np.array([k]), fake, labels) for k in members])
        for ensemble in (everyone, some):
            assert torch.equal(ensemble.input_gradients(members, fake, labels), expected)


def test_the_generator_is_asked_alike_whoever_takes_part(mechanism_for, stripes: ImageData) -> None:
    """Fakes move the generator's batch statistics: a step in which nobody takes part must not show there."""
    asked: list[tuple] = []

    class Counting(Fakes):
        def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
            asked.append((count, *index))
            return super().fakes(count, *index)

    for members in ([], [3], list(range(COUNT))):
        ensemble = make(stripes, mechanism_for)
        ensemble.draw_participants = lambda step, chosen=members: np.array(chosen, np.int64)  # type: ignore[method-assign]
        ensemble.learn(0, Counting())  # type: ignore[arg-type]
    assert asked == 3 * asked[:1]


class FakesThere(Fakes):
    def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = super().fakes(count, *index)
        return images.cuda(), labels.cuda()


@pytest.mark.gpu
@pytest.mark.parametrize("rate", [0.4, 1.0])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_recorded_on_a_gpu_is_called_on_a_gpu_and_near_the_cpu(
    mechanism_for, stripes: ImageData, monkeypatch, precision: str, rate: float
) -> None:
    """Recorded or called: the same to the last bit, or the coins could be told from others' weights."""
    results = []
    for device, eager in (("cuda", 0), ("cuda", 10**6), ("cpu", 0)):
        monkeypatch.setattr("gswgan.generators.cuda_graphs.EAGER", eager or 3)
        ensemble = make(stripes, mechanism_for, rate=rate, precision=precision, device=torch.device(device))
        fakes = FakesThere() if device == "cuda" else Fakes()
        for step in range(8):
            ensemble.learn(step, fakes)  # type: ignore[arg-type]
            rows = [r.clone() for r, _ in ensemble._blocks(*fakes.fakes(BATCH, "judged", step))]
        results.append((ensemble.state(), torch.cat(rows)))
    (recorded, rows), (called, others), (near, exact) = results
    assert same(recorded, called)
    assert torch.equal(rows, others)
    apart = (rows.cpu() - exact).norm() / exact.norm()
    assert apart < (1e-3 if precision == "float32" else 0.3)
    assert torch.equal(recorded["steps"].cpu(), near["steps"])


def test_fakes_of_a_step_are_fresh_or_one(mechanism_for, stripes: ImageData) -> None:
    asked: list[tuple] = []

    class Counting(Fakes):
        def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
            asked.append((count, *index))
            return super().fakes(count, *index)

    make(stripes, mechanism_for).learn(1, Counting())  # type: ignore[arg-type]
    make(stripes, mechanism_for, fakes_per_step="one").learn(1, Counting())  # type: ignore[arg-type]
    assert asked == [(24, "critics", 1), (12, "critics", 1)]  # a pool for each of two updates, or one


def test_an_invalid_label_does_not_raise_and_stays_with_its_critic(mechanism_for, stripes: ImageData) -> None:
    labels = stripes.labels.copy()
    labels[17], labels[18] = -7, 10**6
    one, other = make(stripes, mechanism_for), make(dataclasses.replace(stripes, labels=labels), mechanism_for)
    owners = {k for k in range(COUNT) if {17, 18} & set(one.partitions.table[k].tolist())}
    play(one)
    play(other)
    assert {k for k in range(COUNT) if not same(critic_state(one, k), critic_state(other, k))} <= owners


def test_each_record_meets_a_fake_of_its_own_class(mechanism_for, stripes: ImageData, monkeypatch) -> None:
    """Fakes that show their label as their brightness: record and fake of a row agree in every update."""

    class Telling(Fakes):
        def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
            labels = super().fakes(count, *index)[1]
            return (labels / 3)[:, None, None, None].expand(count, 1, 8, 8).clone(), labels

    seen = []
    original = critics.critic_gradients

    def watch(params, buffers, real, real_labels, fake, fake_labels, *rest, **options):
        seen.append(
            torch.equal(real_labels, fake_labels) and torch.allclose(fake[..., 0, 0, 0] * 3, real_labels.float())
        )
        return original(params, buffers, real, real_labels, fake, fake_labels, *rest, **options)

    monkeypatch.setattr(critics, "critic_gradients", watch)
    make(stripes, mechanism_for).learn(0, Telling())  # type: ignore[arg-type]
    assert seen
    assert all(seen)


def test_state_round_trip(mechanism_for, stripes: ImageData) -> None:
    one, other = make(stripes, mechanism_for), make(stripes, mechanism_for)
    play(one, 4)
    other.load_state({name: value.clone() for name, value in one.state().items()})
    for ensemble in (one, other):
        ensemble.learn(4, Fakes())  # type: ignore[arg-type]
    assert same(one.state(), other.state())


def test_a_loaded_state_replaces_that_of_the_critics_at_the_desk(mechanism_for, stripes: ImageData) -> None:
    """One critic a step: the same one is asked before and after loading."""
    ensemble, other = (make(stripes, mechanism_for, count=2, rate=0.5, sampling="one", public=p) for p in (0, 1))
    fake, labels = Fakes().fakes(BATCH, "judged")
    members = np.array([0])
    before = ensemble.input_gradients(members, fake, labels)
    ensemble.load_state(other.state())
    after = ensemble.input_gradients(members, fake, labels)
    assert torch.equal(after, other.input_gradients(members, fake, labels))
    assert not torch.equal(after, before)


def test_bfloat16_is_close_to_float32(mechanism_for, stripes: ImageData) -> None:
    full, half = make(stripes, mechanism_for), make(stripes, mechanism_for, precision="bfloat16")
    fake, labels = Fakes().fakes(BATCH, "judged")
    for ensemble in (full, half):
        ensemble.learn(0, Fakes())  # type: ignore[arg-type]
        assert ensemble.params["conv1.weight"].dtype == torch.float32
    exact = torch.cat([rows for rows, _ in full._blocks(fake, labels)])
    rough = torch.cat([rows for rows, _ in half._blocks(fake, labels)])
    assert rough.dtype == torch.float32
    assert (exact - rough).norm() / exact.norm() < 0.1


def test_who_takes_part_changes_and_nobody_else(mechanism_for, stripes: ImageData) -> None:
    ensemble = make(stripes, mechanism_for)
    for step in range(4):
        before = [critic_state(ensemble, k) for k in range(COUNT)]
        ensemble.learn(step, Fakes())  # type: ignore[arg-type]
        chosen = set(ensemble.draw_participants(step).tolist())
        assert 0 < len(chosen) < COUNT
        for k in range(COUNT):
            after = critic_state(ensemble, k)
            assert same(before[k], after) == (k not in chosen)
            assert after["steps"] - before[k]["steps"] == (SETTINGS.updates if k in chosen else 0)


def test_coins_and_batches_are_secret_shards_and_weights_public(mechanism_for, stripes: ImageData) -> None:
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
        ensemble.draw_participants = lambda step: np.arange(COUNT)  # type: ignore[method-assign]
        ensemble.learn(0, Fakes())  # type: ignore[arg-type]
    assert not same(ours.state(), other_key.state())  # other batches


def test_the_papers_draw_is_one_critic_uniformly(mechanism_for, stripes: ImageData) -> None:
    ensemble = make(stripes, mechanism_for, sampling="one", rate=1.0, noise_std=1e-9)
    draws = [ensemble.draw_participants(step) for step in range(6000)]
    assert all(drawn.shape == (1,) for drawn in draws)
    counts = np.bincount(np.concatenate(draws), minlength=COUNT)
    expected = 6000 / COUNT
    assert ((counts - expected) ** 2 / expected).sum() < 31.3  # chi squared with 11 degrees of freedom, 0.1 %
    ensemble.learn(0, Fakes())  # type: ignore[arg-type]
    fake, labels = Fakes().fakes(BATCH, "judged")
    (rows,) = torch.cat([rows for rows, _ in ensemble._blocks(fake, labels)])
    clipped = rows / (rows.norm(dim=1, keepdim=True) / CLIP).clamp(min=1)
    assert torch.allclose(ensemble.upstream_gradient(fake, labels).flatten(1), clipped, atol=1e-6)  # divided by 1


def test_each_step_is_a_release_of_its_own(mechanism_for, stripes: ImageData) -> None:
    ensemble = make(stripes, mechanism_for)
    fake, labels = Fakes().fakes(BATCH, "judged")
    released = []
    for step in (0, 1, 2):
        ensemble.learn(step, Fakes())  # type: ignore[arg-type]
        released.append(ensemble.upstream_gradient(fake, labels))
    assert [entry.name for entry in mechanism_of(ensemble).ledger.entries] == ["step 0", "step 1", "step 2"]
    noise = torch.stack(released).flatten(1)
    assert abs(torch.corrcoef(noise) - torch.eye(3)).max() < 0.35


@pytest.fixture
def batches(monkeypatch) -> list[tuple[torch.Tensor, ...]]:
    """What the critics were shown: real images, their labels, fakes, mixing numbers."""
    seen: list[tuple[torch.Tensor, ...]] = []
    original = critics.critic_gradients

    def watch(params, buffers, real, real_labels, fake, fake_labels, mixes, **options):
        seen.append((real, real_labels, fake, mixes))
        return original(params, buffers, real, real_labels, fake, fake_labels, mixes, **options)

    monkeypatch.setattr(critics, "critic_gradients", watch)
    return seen


def test_a_record_comes_with_its_own_label_and_in_the_range_of_fakes(mechanism_for, stripes, batches) -> None:
    """Every image shown is one of the data, over 255, and its label is the one that the data gives it."""
    known = {image.tobytes(): int(label) for image, label in zip(stripes.images, stripes.labels)}
    play(make(stripes, mechanism_for), steps=3)
    for real, labels, _, _ in batches:
        assert 0 <= real.min() < 0.1 < 0.9 < real.max() <= 1
        shown = (real * 255).round().to(torch.uint8).flatten(0, 1).numpy()
        assert [known[image.tobytes()] for image in shown] == labels.flatten().tolist()


def test_batches_are_fresh_in_every_step_update_and_critic(mechanism_for, stripes, batches) -> None:
    ensemble = make(stripes, mechanism_for, learning_batch=8)
    ensemble.draw_participants = lambda step: np.arange(COUNT)  # type: ignore[method-assign]
    play(ensemble, steps=20)
    mixes = torch.cat([mix for *_, mix in batches]).flatten(1)
    chunks = math.ceil(COUNT / ensemble.chunk)
    assert len(batches) == 20 * SETTINGS.updates * chunks
    distinct = len(torch.unique(mixes, dim=0))
    assert distinct == 20 * SETTINGS.updates * COUNT  # copies that fill up a chunk repeat their critic's
    assert 0 <= mixes.min() < 0.01 < 0.99 < mixes.max() < 1
    shown = {image.tobytes() for real, *_ in batches for image in real.flatten(0, 1).numpy()}
    assert len(shown) == len({image.tobytes() for image in stripes.images})  # every record is used


def test_every_chunk_has_one_size_whoever_takes_part(mechanism_for, stripes, batches) -> None:
    """Kernels are chosen by shape, and a shape that varied with the coins could change a critic's last bits."""
    ensemble = make(stripes, mechanism_for)
    for members in ([3], [0, 5], list(range(COUNT))):
        ensemble.draw_participants = lambda step, chosen=members: np.array(chosen)  # type: ignore[method-assign]
        ensemble.learn(0, Fakes())  # type: ignore[arg-type]
    assert {len(real) for real, *_ in batches} == {ensemble.chunk}


def test_data_without_labels_is_one_class(mechanism_for, stripes, batches) -> None:
    play(make(dataclasses.replace(stripes, labels=None), mechanism_for), steps=1)
    assert all((labels == 0).all() for _, labels, _, _ in batches)


def test_state_holds_all_that_learning_changes(mechanism_for, stripes: ImageData) -> None:
    """A state that left something out would resume as another run."""
    one, other = make(stripes, mechanism_for), make(stripes, mechanism_for)
    play(one, 3)
    held = [*one.params.values(), *one.buffers.values(), *one.adam.exp_avg.values(), *one.adam.exp_avg_sq.values()]
    saved = one.state()
    assert {value.data_ptr() for value in saved.values()} == {value.data_ptr() for value in [*held, one.adam.steps]}
    with pytest.raises(KeyError):
        other.load_state({name: value for name, value in saved.items() if name != "steps"})


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


def test_every_update_has_records_and_fakes_of_its_own_and_follows_the_spectral_norm(
    mechanism_for, stripes, batches
) -> None:
    ensemble = make(stripes, mechanism_for, rate=1.0, updates=3)
    before = {name: value.clone() for name, value in ensemble.buffers.items()}
    ensemble.learn(2, Fakes())  # type: ignore[arg-type]
    assert len(batches) == 3
    fakes: list[torch.Tensor] = []
    for update, (real, _, fake, _) in enumerate(batches):
        seen = {image.numpy().tobytes() for image in fake.flatten(0, 1)}
        assert seen <= {image.numpy().tobytes() for image in Fakes().fakes(36, "critics", 2)[0]}
        assert all(seen.isdisjoint(image.numpy().tobytes() for image in other.flatten(0, 1)) for other in fakes)
        fakes.append(fake)
        assert all(not torch.equal(real, other) for other, *_ in batches[:update])
    assert all(not torch.equal(value, before[name]) for name, value in ensemble.buffers.items() if "conv" in name)
