"""A server, or bad records, against a client: what leaves, what is read, what it costs, what is left on the disk."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from critic_rounds import asked, cap_of, critic_clients, critic_plan
from in_children import reply_in_little_memory
from rounds import make_clients, people, read_log, small_plan, why_refused

from gswgan.data import clients
from gswgan.errors import FederationError
from gswgan.federated.client import REFUSED, Client
from gswgan.federated.limits import Limits, memory_of, work_of
from gswgan.federated.memory import MAX_LOG_BYTES, Cap, Memory, write_log
from gswgan.federated.messages import pack, question, unpack
from gswgan.federated.site import check_site, client_of
from gswgan.federated.stated import Stated
from gswgan.federated.trust import make_federated_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy.accountant import NOT_RECOMPUTED
from gswgan.privacy.mechanism import GRID_BITS
from processes import Child

DATA = people()
NAME, MINE = next(clients(DATA))


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def bad_labels(root: Path) -> Path:
    labels = MINE.labels.copy()
    labels[5] = 7
    return save(root / "mine.npz", images=MINE.images[:, 0], labels=labels)


def bad_pixels(root: Path) -> Path:
    images = MINE.images[:, 0].astype(np.float32) / 255
    images[3, 0, 0] = 1234.5
    return save(root / "mine.npz", images=images, labels=MINE.labels)


def other_shape(root: Path) -> Path:
    return save(root / "mine.npz", images=np.pad(MINE.images[:, 0], ((0, 0), (0, 4), (0, 4))), labels=MINE.labels)


def no_file(root: Path) -> Path:
    return root / "nothing.npz"


def no_images(root: Path) -> Path:
    (root / "mine.npz").write_bytes(b"secret patient 4711")
    return root / "mine.npz"


BAD = [bad_labels, bad_pixels, other_shape, no_file, no_images]


def config(root: Path, data: Path, trust: str, **more: Any) -> dict[str, Any]:
    return {
        "client": NAME, "data": str(data), "state": str(root / "state"), "trust": trust, "epsilon": 20.0, "delta": 1e-5,
        "neighbours": "zeroed" if trust == "trusted-aggregator" else "replace-one", **more,
    }  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("trust", ["trusted-aggregator", "untrusted-server"])
def test_bad_records_are_answered_for_with_zeros_and_nothing_of_them_leaves(tmp_path: Path, bad: Any, trust: str):
    plan = small_plan(DATA, trust=trust)
    client = client_of(config(tmp_path, bad(tmp_path), trust))
    reply = client.reply(question(plan))
    assert set(reply) == {"client", "plan", "sums"}  # it answers, as any other client does
    assert len(Memory.read(client.home).events) == 1
    if trust == "trusted-aggregator":
        assert reply["sums"] == pack(np.zeros((1, 99), np.int64), plan)
    else:
        scale = plan.privacy.noise_std / plan.privacy.clip_norm * 2.0**GRID_BITS
        assert 0.6 < unpack(reply["sums"], plan).std() / scale < 1.4  # noise and nothing else, of the usual size
    (told,) = read_log(client.home)  # the site is told what is wrong
    assert "cannot be used" in str(told["what"])


@pytest.mark.parametrize("trust", ["trusted-aggregator", "untrusted-server"])
def test_bad_records_do_not_show_in_rounds_of_algorithm_2_either(tmp_path: Path, trust: str):
    plan = critic_plan(rounds=3, trust=trust, epsilon=10)
    client = client_of({**config(tmp_path, bad_labels(tmp_path), trust), "epsilon": 11.0})
    assert "block" in client.reply(asked(plan, 0))
    save(tmp_path / "mine.npz", images=MINE.images[:, 0], labels=MINE.labels)  # the site has repaired them
    assert "block" in client.reply(asked(plan, 1))
    assert len(read_log(client.home)) == 1
    assert len(Memory.read(client.home).events) == 2


def test_a_computation_that_fails_on_the_records_is_answered_for_with_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fails(*arguments: object) -> None:
        raise ValueError(f"record 3 has {MINE.images[3].tolist()}")

    monkeypatch.setattr("gswgan.federated.client_answers.person_row", fails)
    plan = small_plan(DATA)
    client = make_clients(tmp_path, DATA, plan)[NAME]
    assert client.reply(question(plan))["sums"] == bytes(4 * 99)
    monkeypatch.setattr("gswgan.critics.ensemble.ensemble.Ensemble.input_gradients", fails)
    rounds = critic_plan(rounds=3, epsilon=10)
    other = critic_clients(tmp_path / "other", rounds)[NAME]
    reply = other.reply(asked(rounds))
    assert not any(bytes(reply["block"]))
    assert "record 3" in str(read_log(other.home)[-1]["why"])


def test_nothing_that_is_raised_before_there_is_a_client_leaves(tmp_path: Path):
    pytest.importorskip("flwr")
    from gswgan.federated.flower import reply_to

    def find(settings: Any) -> Client:
        raise ValueError("labels[19] = 7 in /data/alice.npz")

    for found in (find, client_of):
        assert reply_to(question(small_plan(DATA)), {"client": "alice"}, found) == {"refused": REFUSED}


def test_a_site_hears_of_bad_records_when_it_starts(tmp_path: Path):
    with pytest.raises(FederationError, match="no delta"):
        check_site({name: 1 for name in ("client", "data", "state", "trust", "epsilon")})
    with pytest.raises(FederationError, match="epsilonn"):
        check_site({**config(tmp_path, no_file(tmp_path), "trusted-aggregator"), "epsilonn": 1})
    with pytest.raises(FederationError, match="an absolute path"):  # the cap would begin anew in another folder
        check_site({**config(tmp_path, no_file(tmp_path), "trusted-aggregator"), "state": "state"})
    for bad in (bad_labels, bad_pixels, no_images, no_file):
        with pytest.raises(ValueError, match=r"labels|images|data|npz"):
            client_of(config(tmp_path, bad(tmp_path), "trusted-aggregator", classes=3), look=True)
    other = client_of(config(tmp_path, other_shape(tmp_path), "trusted-aggregator", classes=3), look=True)
    assert "as the client's data has" in why_refused(other, other.reply(question(small_plan(DATA))))


def huge(plan: Plan, **critic: int) -> Plan:
    return dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, **critic))


HUGE = {
    "features": huge(small_plan(DATA), features=2**20),
    "warm start": critic_plan(rounds=3, epsilon=10, warm_start=1_000_000),
    "width": huge(critic_plan(rounds=3, epsilon=10), width=4096),
    "batch": huge(critic_plan(rounds=3, epsilon=10), learning_batch=2**20),
}
_LARGE = dataclasses.replace(
    small_plan(DATA), facts=dataclasses.replace(Facts.of(DATA), image_size=28), critic=HUGE["features"].critic
)


def test_a_plan_that_asks_for_gigabytes_is_refused_before_anything_is_allocated(tmp_path: Path):
    done = Child(reply_in_little_memory, tmp_path, json.dumps(question(_LARGE))).wait()
    assert done.returncode == 0, done.stderr
    reply, log, left = json.loads(done.stdout)
    assert reply["refused"] == REFUSED
    assert "at most 8, the limit of this site" in log[-1]["why"]
    assert left == ["client.json", "lock", "log.jsonl"]  # no folder for the plan, and no key


@pytest.mark.parametrize("layers", [(1024,), (1024, 1024, 1)])
def test_a_plan_with_a_large_untrained_network_is_refused_before_anything_is_allocated(
    tmp_path: Path, layers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    plan = small_plan(DATA)
    critic = dataclasses.replace(plan.critic, features=4096, convolutions=layers)
    large = dataclasses.replace(plan, critic=critic, facts=dataclasses.replace(plan.facts, image_size=128))
    made = []
    monkeypatch.setattr("gswgan.federated.client_answers.RandomFeatures", lambda *sizes: made.append(sizes))
    client = make_clients(tmp_path, DATA, plan, stated=Stated())[NAME]
    reply = client.reply(question(large))
    assert not made
    assert "at most 8, the limit of this site" in why_refused(client, reply)
    Limits().check(dataclasses.replace(plan, critic=dataclasses.replace(critic, convolutions=(32, 64))))


@pytest.mark.parametrize("what", ["warm start", "width", "batch"])
def test_rounds_that_ask_for_hours_or_gigabytes_are_refused(tmp_path: Path, what: str):
    plan = HUGE[what]
    client = critic_clients(tmp_path, plan, cap=Cap(epsilon=100, delta=1e-5, neighbours="zeroed"))[NAME]
    batch = asked() if what != "batch" else {}
    reply = client.reply({**batch, **question(plan), "round": "0"})
    why = why_refused(client, reply)
    assert "the limit of this site" in why or what == "batch"  # whose fakes never came
    assert not [path for path in client.home.iterdir() if path.is_dir()]


def test_the_limits_are_the_sites_own_and_let_all_presets_pass(tmp_path: Path):
    plan = small_plan(DATA)
    tight = make_clients(tmp_path, DATA, plan, limits=Limits(memory=0.001))[NAME]
    assert "at most 0.001" in why_refused(tight, tight.reply(question(plan)))
    assert memory_of(HUGE["features"]) > memory_of(plan)
    assert work_of(HUGE["warm start"]) > 1000 * work_of(critic_plan(rounds=3, epsilon=10))
    mnist = Facts(
        data="writers", records=539, persons=539, classes=10, class_names=tuple("0123456789"), labelled=True,
        image_size=28, channels=1,
    )  # fmt: skip
    Limits().check(make_federated_plan(mnist))
    Limits().check(make_federated_plan(mnist, preset="ensemble"))
    Limits().check(make_federated_plan(mnist, preset="paper-federated", trust="untrusted-server"))
    with pytest.raises(FederationError, match="above 0"):
        Limits(memory=0)


def test_the_cap_is_checked_before_the_records_are_looked_at(tmp_path: Path):
    plan, rounds = small_plan(DATA), critic_plan(rounds=3, epsilon=10)
    for asks in (question(plan), asked(rounds)):
        client = Client(
            NAME, lambda facts: pytest.fail("looked at"), tmp_path, trust="trusted-aggregator",
            cap=Cap(epsilon=0.5, delta=1e-5, neighbours="zeroed"),
        )  # fmt: skip
        reply = client.reply(asks)
        assert "at most 0.5, the cap" in why_refused(client, reply)  # the site is told, the server is not
        assert not [path for path in client.home.iterdir() if path.is_dir()]


def stating(plan: Plan, epsilon: float) -> Plan:
    return dataclasses.replace(plan, guarantee=dataclasses.replace(plan.guarantee, epsilon=epsilon))


SAMPLED = {
    "secret coins": critic_plan(rounds=3, rate=0.4, epsilon=5),
    "one client drawn": critic_plan(rounds=3, preset="paper-federated", trust="untrusted-server"),
}


@pytest.mark.parametrize("how", SAMPLED)
def test_a_sampled_plan_that_states_less_than_it_costs_is_refused(tmp_path: Path, how: str):
    plan = SAMPLED[how]
    client = critic_clients(tmp_path, plan, cap=dataclasses.replace(cap_of(plan), epsilon=1e6))[NAME]
    lying = stating(plan, plan.guarantee.epsilon * 0.9)
    assert "states less than it costs" in why_refused(client, client.reply(asked(lying)))
    assert not [path for path in client.home.iterdir() if path.is_dir()]
    assert "block" in client.reply(asked(plan))


def test_a_figure_that_is_not_computed_again_is_named_so_in_the_clients_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan = SAMPLED["secret coins"]
    monkeypatch.setattr("gswgan.federated.trust.MAX_ACCOUNTED", 1.0)  # beyond it the accountant takes too much memory
    client = critic_clients(tmp_path, plan)[NAME]
    for step in (0, 1):
        assert "block" in client.reply(asked(plan, step))
    (row,) = read_log(client.home)
    assert NOT_RECOMPUTED in str(row["why"])


@pytest.mark.parametrize("trust", ["trusted-aggregator", "untrusted-server"])
def test_a_thief_finds_no_key_when_the_answers_are_made(tmp_path: Path, trust: str):
    plan = small_plan(DATA, trust=trust)
    client = make_clients(tmp_path, DATA, plan)[NAME]
    first = client.reply(question(plan))
    assert "sums" in first
    assert not list(tmp_path.rglob("key.json*"))
    assert make_clients(tmp_path, DATA, plan)[NAME].reply(question(plan)) == first
    assert len(Memory.read(client.home).events) == 1
    rounds = critic_plan(rounds=2, trust=trust, epsilon=10)
    other = critic_clients(tmp_path / "rounds", rounds)[NAME]
    other.reply(asked(rounds, 0))
    assert len(list(other.home.rglob("key.json"))) == 1  # the noise of the next round comes from it
    last = other.reply(asked(rounds, 1))
    assert not list(other.home.rglob("key.json*"))
    assert other.reply(asked(rounds, 1)) == last
    assert not list(other.home.rglob("key.json*"))


def test_a_key_is_erased_when_the_cap_has_no_room_for_another_answer(tmp_path: Path):
    plan = critic_plan(rounds=3, epsilon=10)
    cap = dataclasses.replace(cap_of(plan), epsilon=next(value for done, value in plan.curve if done == 1) * 1.01)
    client = critic_clients(tmp_path, plan, cap=cap)[NAME]
    first = client.reply(asked(plan, 0))
    assert "block" in first
    assert not list(client.home.rglob("key.json*"))
    assert client.reply(asked(plan, 1)) == {"client": NAME, "refused": REFUSED}
    assert client.reply(asked(plan, 0)) == first
    assert not list(client.home.rglob("key.json*"))


def test_whoever_asks_often_cannot_fill_the_disk_with_refusals(tmp_path: Path):
    for _ in range(3):
        (tmp_path / "log.jsonl").write_bytes(b"x" * (MAX_LOG_BYTES + 1))
        write_log(tmp_path, "refused", "y" * 10**6)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < MAX_LOG_BYTES + 5000
    assert len(read_log(tmp_path)) == 1
