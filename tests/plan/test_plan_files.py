"""Properties of plan files: any content, any byte."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from works import small_refined

from conftest import MNIST, tiny_images, tiny_plan
from gswgan.api.plan_text import describe
from gswgan.errors import PlanError
from gswgan.methods import make_plan, plan_from_table, read_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan

FUZZ = settings(
    derandomize=True, database=None, deadline=None, max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


PRESETS = st.sampled_from(["kernel", "ensemble", "paper"])
IN_STAGES = PRESETS | st.just("refined")


NAMES = st.text(max_size=20).filter(str.isprintable)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**400)
    | st.integers(-3, 70)
    | st.floats()
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@functools.cache
def planned(preset: str) -> Plan:
    if preset == "refined":
        return small_refined(make_plan(Facts.of(tiny_images()), preset=preset, steps=8))
    return tiny_plan(tiny_images(), preset=preset)


@functools.cache
def saved(preset: str) -> str:
    return json.dumps(planned(preset).to_json())


def places(content: Any) -> list[tuple[Any, Any]]:
    """Every (table or list, key) in a JSON tree."""
    keys = (
        list(content) if isinstance(content, dict) else list(range(len(content))) if isinstance(content, list) else []
    )
    return [(content, key) for key in keys] + [place for key in keys for place in places(content[key])]


def mutate(content: dict[str, Any], data: st.DataObject) -> None:
    """One value of the tree exchanged, taken away or added."""
    table, key = data.draw(st.sampled_from(places(content)), label="place")
    action = data.draw(st.sampled_from(["exchange", "nudge", "take", "add"]), label="action")
    if action == "take":
        del table[key]
    elif action == "add" and isinstance(table, dict):
        table[data.draw(st.text(max_size=9) | st.sampled_from(["sigma", "steps"]))] = data.draw(json_values)
    elif action == "nudge" and type(table[key]) in (int, float, bool) and abs(table[key]) < 2**63:
        table[key] = data.draw(
            st.sampled_from([0, -table[key], table[key] + 1, table[key] * 1e-3, 1e300, float("nan")])
        )
    else:
        table[key] = data.draw(json_values)


@FUZZ
@given(IN_STAGES, st.data())
def test_a_mutated_plan_is_refused_or_the_same(preset: str, data: st.DataObject) -> None:
    content = json.loads(saved(preset))
    mutate(content, data)
    with contextlib.suppress(PlanError):
        assert read_plan(content) == read_plan(json.loads(saved(preset)))


@FUZZ
@given(IN_STAGES, st.data())
def test_a_mutated_plan_with_its_own_digest_is_refused_or_whole(preset: str, data: st.DataObject) -> None:
    """Whoever can hash can make a plan: it is one that can be said, saved and read back, with sane numbers."""
    content = json.loads(saved(preset))
    for _ in range(data.draw(st.integers(1, 2))):
        mutate(content, data)
    plain = {key: value for key, value in content.items() if key not in ("format_version", "digest")}
    plan, message = None, ""
    try:
        plan = plan_from_table(copy.deepcopy(plain))
    except PlanError as refused:
        message = str(refused)
    assert len(message) < 700  # never a whole table
    if plan is None:
        return
    assert read_plan(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.privacy.total()
    assert 0 < plan.privacy.noise_std <= 2.0**20 * plan.privacy.clip_norm
    assert plan.guarantee.delta == plan.privacy.delta
    assert describe(plan)


@FUZZ
@given(st.binary(max_size=80))
@example(b"[" * 100_000)
@example(b'{"format_version": ' + b"9" * 5000 + b"}")
@example(b'{"format_version": 4, "digest": "\\ud800"}')
@example('{"format_version": 4}'.encode("utf-16"))
def test_any_bytes_are_refused_as_a_plan(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(PlanError):
        read_plan(tmp_path / "plan.json")


@FUZZ
@given(IN_STAGES, st.data())
def test_a_damaged_plan_file_is_refused_or_the_same(tmp_path: Path, preset: str, data: st.DataObject) -> None:
    path, content = tmp_path / "plan.json", bytearray(saved(preset).encode())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with contextlib.suppress(PlanError):
        assert read_plan(path) == planned(preset)


@FUZZ
@given(PRESETS, st.integers(0, 2**63 - 1), st.floats(1e-6, 1), st.integers(1, 4096), NAMES, st.booleans())
def test_any_plan_comes_back_as_it_was(
    preset: str, seed: int, rate: float, width: int, name: str, insecure: bool
) -> None:
    plan = tiny_plan(tiny_images(), preset=preset)
    plan = dataclasses.replace(
        plan, seed=seed, insecure_reproducible=insecure,
        facts=dataclasses.replace(plan.facts, data=name),
        generator=dataclasses.replace(plan.generator, width=width),
        optimizer=dataclasses.replace(plan.optimizer, learning_rate=rate),
    )  # fmt: skip
    again = read_plan(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.digest() == plan.digest()


def test_equal_plans_have_equal_digests_however_a_number_is_written() -> None:
    plan = tiny_plan(tiny_images())
    whole = dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, noise_std=3))
    assert (
        whole.digest() == dataclasses.replace(whole, privacy=dataclasses.replace(plan.privacy, noise_std=3.0)).digest()
    )
    assert read_plan(json.loads(json.dumps(whole.to_json()))) == whole


@functools.cache
def staged(preset: str) -> Plan:
    return make_plan(MNIST, preset=preset, steps=8, epsilon=10)


@pytest.mark.parametrize("preset", ["kernel", "refined", "ensemble"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"windows": [0.0, 1.0, 2.0]}, "windows"),
        ({"windows": [], "length_scales": []}, "a length scale"),
        ({"features": 63}, "an even number"),
        ({"convolutions": [4] * 10_000}, "at most 8 layers"),
        ({"convolutions": [4], "encoder_steps": 5}, "public images"),
    ],
)
def test_features_that_do_not_exist_are_refused_in_every_preset_that_has_some(
    preset: str, changes: dict[str, Any], said: str
) -> None:
    plain = staged(preset).to_json()
    del plain["format_version"], plain["digest"]
    (plain["critic"] if preset == "kernel" else plain["critic"]["kernel"]).update(changes)
    with pytest.raises(PlanError, match=said) as refused:
        plan_from_table(plain)
    assert len(str(refused.value)) < 700
