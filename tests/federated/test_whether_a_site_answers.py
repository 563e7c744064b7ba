"""Whether a site answers does not depend on its records: what a server can learn from refusals is public."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from critic_rounds import asked, critic_clients, critic_plan
from PIL import Image
from rounds import make_clients, people, read_log, small_plan, why_refused
from silo_rounds import clients_of, parts_of, plan_for
from typer.testing import CliRunner

from gswgan.cli.main import app
from gswgan.critics.kernel import embedding
from gswgan.data import ImageData
from gswgan.errors import FederationError
from gswgan.federated.client import Client
from gswgan.federated.memory import Memory
from gswgan.federated.messages import question, read_batch, unpack
from gswgan.federated.silos import of_unit, silo_facts, site_sum
from gswgan.federated.site import check_site, client_of
from gswgan.federated.trust import make_federated_plan, weight_of_counts
from gswgan.plan.facts import Site
from gswgan.plan.plan import Plan
from gswgan.run.checkpoint import Checkpoint

SITE = "site-00000"


def lacking(plan: Plan, *names: str) -> Plan:
    """The plan without these classes."""
    kept = tuple(name for name in plan.facts.class_names if name not in names)
    return dataclasses.replace(plan, facts=dataclasses.replace(plan.facts, class_names=kept, classes=len(kept)))


def only(data: ImageData, rows: np.ndarray) -> ImageData:
    return dataclasses.replace(
        data, images=data.images[rows], labels=None if data.labels is None else data.labels[rows],
        persons=None if data.persons is None else data.persons[rows],
    )  # fmt: skip


@pytest.mark.parametrize("trust", ["trusted-aggregator", "untrusted-server"])
@pytest.mark.parametrize("protect", ["record", "person"])
def test_a_server_cannot_probe_which_classes_a_site_has(tmp_path: Path, protect: str, trust: str):
    parts = parts_of(protect)
    mine = parts[SITE]
    relabelled = dataclasses.replace(mine, labels=np.zeros_like(mine.labels))  # a site that has class 0 alone
    for number, missing in enumerate((("3",), ("0", "1"), tuple("123456789"), tuple("0123456"))):
        plan = lacking(plan_for(parts, protect, trust=trust), *missing)
        for name, data in (("all", mine), ("one", relabelled)):
            state = tmp_path / f"{number} {name}"
            (client,) = clients_of(state, {SITE: data}, plan, protect).values()
            reply = client.reply(question(plan))
            assert set(reply) == {"client", "plan", "sums"}, (missing, name)
            assert len(Memory.read(client.home).events) == 1
            if trust == "trusted-aggregator":
                kept = ~np.isin(data.labels, [int(label) for label in missing])
                new = np.array([plan.facts.class_names.index(str(y)) if ok else -1 for y, ok in zip(data.labels, kept)])
                left = only(dataclasses.replace(of_unit(data, protect), labels=new), kept)  # type: ignore[arg-type]
                left = dataclasses.replace(left, classes=plan.facts.classes, class_names=plan.facts.class_names)
                expected = site_sum(plan, left, weight_of_counts(plan)).total.ravel()
                assert np.array_equal(unpack(reply["sums"], plan, SITE)[0], expected)
            told = [row["what"] for row in read_log(client.home)]  # the site itself is told
            assert told == ["records of other classes, which add nothing"] * bool(
                np.isin(data.labels, list(map(int, missing))).any()
            )


@pytest.mark.parametrize("protect", ["record", "person", "client"])
def test_a_site_does_as_much_work_whatever_names_a_server_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protect: str
):
    """Otherwise the time to an answer tells how many records it has of the classes that are named."""
    seen, real = [], embedding._pixels

    def pixels(images: np.ndarray, device: torch.device) -> torch.Tensor:
        seen.append(len(images))
        return real(images, device)

    monkeypatch.setattr(embedding, "_pixels", pixels)
    work = []
    for number, missing in enumerate(("", "12", "0")):
        if protect == "client":
            data, name = people(), "person 00"
            plan = lacking(small_plan(data), *missing)
            client = make_clients(tmp_path / str(number), data, plan)[name]
        else:
            parts = parts_of(protect)
            plan = lacking(plan_for(parts, protect), *missing)
            (client,) = clients_of(tmp_path / str(number), {SITE: parts[SITE]}, plan, protect).values()
        seen.clear()
        assert "sums" in client.reply(question(plan))
        work.append(list(seen))
    assert work[0] == work[1] == work[2]


@pytest.mark.parametrize("rounds", [False, True])
def test_a_client_of_many_answers_plans_with_other_classes_too(tmp_path: Path, rounds: bool):
    data = people()
    if rounds:
        plan = lacking(critic_plan(rounds=2, epsilon=10), "2")
        client = critic_clients(tmp_path, plan)[data.person_ids[0]]
        assert any(client.reply(asked(plan))["block"])  # type: ignore[arg-type]
    else:
        plan = lacking(small_plan(data), "2")
        client = make_clients(tmp_path, data, plan)[data.person_ids[0]]
        assert any(client.reply(question(plan))["sums"])  # type: ignore[arg-type]
    assert [row["what"] for row in read_log(client.home)] == ["records of other classes, which add nothing"]


def test_a_client_that_died_in_a_round_is_asked_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise a server would see by a refusal whether the sums of two questions are equal: without noise."""
    plan = critic_plan(rounds=3, trust="untrusted-server", epsilon=10)
    client = critic_clients(tmp_path, plan)["person 03"]
    with monkeypatch.context() as dying:
        dying.setattr(Checkpoint, "save", lambda *_: 1 / 0)  # its answer is recorded, and not kept
        assert "block" not in client.reply(asked(plan, 1))
    before = Memory.read(client.home).events
    assert len(before) == 1
    batch = read_batch(plan, asked(plan, 1))
    other = dataclasses.replace(batch, images=batch.images + 0.01)
    assert "answered for" in why_refused(client, client.reply(question(plan, other)))
    assert "the last one answered" in why_refused(client, client.reply(asked(plan, 0)))
    assert "block" in client.reply(asked(plan, 1))
    assert Memory.read(client.home).events == before
    assert "block" in client.reply(asked(plan, 2))


def npz_site(root: Path, images: np.ndarray, labels: np.ndarray, **more: Any) -> dict[str, Any]:
    np.savez(root / "mine.npz", images=images, labels=labels)
    table = {"client": SITE, "data": str(root / "mine.npz"), "state": str(root / "state"), "protect": "record",
             "trust": "untrusted-server", "epsilon": 20.0, "delta": 1e-5, "classes": 10, **more}  # fmt: skip
    return check_site(table)


def test_records_that_cannot_be_read_do_not_show_in_whether_a_wrong_plan_is_refused(tmp_path: Path):
    """A server that lists a wrong size would learn from an answer that a record has become unreadable."""
    parts = parts_of("record")
    right, mine = plan_for(parts, "record", epsilon=19.0), parts[SITE]
    sites = [Site(name=one.name, records=one.records + (one.name == SITE)) for one in right.facts.silos.sites]  # type: ignore[union-attr]
    facts = silo_facts(
        sites, min_sites=None, data="digits", class_names=right.facts.class_names, image_size=8, channels=1
    )
    wrong = make_federated_plan(facts, epsilon=19.0, steps=6)
    config = npz_site(tmp_path, mine.images[:, 0], mine.labels)
    client = client_of(config, look=True)
    for change in ("none", "an image of another size", "no file that can be read", "a record fewer"):
        if change == "a record fewer":
            np.savez(tmp_path / "mine.npz", images=mine.images[1:, 0], labels=mine.labels[1:])
        elif change == "an image of another size":
            np.savez(
                tmp_path / "mine.npz", images=np.pad(mine.images[:, 0], ((0, 0), (0, 4), (0, 4))), labels=mine.labels
            )
        elif change != "none":
            (tmp_path / "mine.npz").write_bytes(b"broken")
        assert f"{mine.n + 1} records" in why_refused(client, client.reply(question(wrong))), change
    assert "sums" in client.reply(question(right))  # noise alone: the site is told, not the server
    assert "cannot be used" in read_log(client.home)[-1]["what"]


def test_a_site_needs_its_size_and_data_of_the_classes_that_it_states(tmp_path: Path):
    mine, plan = parts_of("record")[SITE], plan_for(parts_of("record"), "record")
    with pytest.raises(FederationError, match="how many records"):
        Client(
            SITE,
            lambda facts: mine,
            tmp_path,
            trust="untrusted-server",
            protect="record",
            cap=Memory.read(next(iter(clients_of(tmp_path / "s", {SITE: mine}, plan, "record").values())).home).cap,
        )
    config = npz_site(tmp_path, mine.images[:, 0], mine.labels)
    assert client_of(config).reply(question(lacking(plan, "3"))).keys() == {"client", "refused"}  # it states 0 to 9
    folder = tmp_path / "images"
    for index, name in ((0, "a"), (1, "b")):
        (folder / name).mkdir(parents=True)
        Image.fromarray(mine.images[index, 0]).save(folder / name / "one.png")
    assert client_of({**config, "data": str(folder), "classes": 2}).stated.classes == ()  # how many, not their names
    with pytest.raises(FederationError, match="b among them, which the data has"):
        client_of({**config, "data": str(folder), "classes": ["a"]}, look=True)
    assert client_of({**config, "data": str(folder), "classes": ["a", "b", "c"]}).stated.classes == ("a", "b", "c")


def test_inspect_says_what_of_the_records_is_in_the_plan_and_whether_the_site_would_answer(tmp_path: Path):
    parts = parts_of("record")
    mine = parts[SITE]
    config = npz_site(tmp_path, mine.images[:, 0], mine.labels)
    del config["classes"]
    np.savez(tmp_path / "mine.npz", images=mine.images[:, 0], labels=mine.labels,
             class_names=np.array([*"012", "three", *"456789"]))  # fmt: skip
    site, text = tmp_path / "site.toml", "\n".join(f"{key} = {json.dumps(value)}" for key, value in config.items())
    plan_for(parts, "record", epsilon=19.0).save(tmp_path / "plan.json")

    def inspect() -> dict[str, Any]:
        words = ["federate", "inspect", str(tmp_path / "plan.json"), "--site", str(site), "--json"]
        said = CliRunner().invoke(app, words, catch_exceptions=False)
        assert said.exit_code == 0, said.output
        return dict(json.loads(said.stdout))

    site.write_text(text)
    found = inspect()
    threes = int((mine.labels == 3).sum())
    shown = "\n".join(found["who_learns_what"])
    assert f"{mine.n - threes:,} of {mine.n:,} records are of the plan's classes" in shown
    assert "add nothing (three)" in shown
    assert "not here:  3: its sums" in shown
    assert found["refused"] is None
    for change in (("20.0", "18.0"), ('"untrusted-server"', '"trusted-aggregator"'), (SITE, "elsewhere")):
        site.write_text(text.replace(*change))
        assert inspect()["refused"], change
    assert not (tmp_path / "state").exists()
