from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from conftest import tiny_images, write_persons
from gswgan.cli.main import app
from gswgan.errors import GswganError, RunError

runner = CliRunner()


def invoke(*arguments: object) -> Result:
    result = runner.invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def call(*arguments: object) -> str:
    return invoke(*arguments).output


def call_json(*arguments: object) -> dict:
    return json.loads(invoke(*arguments, "--json").stdout)


@pytest.fixture(scope="module")
def npz(tmp_path_factory) -> Path:
    data = tiny_images()
    path = tmp_path_factory.mktemp("data") / "stripes.npz"
    np.savez(path, images=data.images[:, 0], labels=data.labels)
    return path


@pytest.fixture(scope="module")
def run(npz: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    text = call("train", "--data", npz, "--classes", 3, "--steps", 40, "--out", out, "--device", "cpu")
    assert "guarantee: epsilon 10 at delta 1e-05 (one record replaced; observer: public)" in text
    assert str(out / "release" / "samples.png") in text
    assert "PRIVATE" not in text
    return out


def test_account_the_paper() -> None:
    content = call_json("privacy", "account", "--preset", "paper")
    assert content["claimed"]["epsilon"] == pytest.approx(9.993, abs=0.01)
    assert content["lower_bound"]["epsilon"] == pytest.approx(329.4, rel=5e-3)
    assert content["epsilon"] == pytest.approx(610.3, rel=5e-3)
    assert (content["delta"], content["neighbours"], content["observer"]) == (1e-5, "replace-one", "public")
    assert content["sampling"] == "one"
    assert "visible draw" in content["accountant"]


def test_account_the_federated_paper() -> None:
    content = call_json("privacy", "account", "--preset", "paper-federated")
    assert content["claimed"]["epsilon"] == pytest.approx(598.61, abs=0.1)
    assert content["epsilon"] == pytest.approx(774.3, rel=5e-3)
    assert content["as_printed"]["epsilon"] == pytest.approx(3788, rel=5e-3)
    assert (content["observer"], content["unit"]) == ("server", "person")


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "expected"),
    [(10, 0.1, 1000, 3.150), (10, 1, 1000, 31.62), (10, 1, 1, 1.0), (1, 1, 1, 7.462)],
)
def test_calibrate_and_account_back(epsilon: float, rate: float, steps: int, expected: float) -> None:
    common = ("--rate", rate, "--steps", steps, "--delta", 1e-5)
    content = call_json("privacy", "calibrate", "--epsilon", epsilon, *common)
    assert content["noise_multiplier"] == pytest.approx(expected, rel=5e-3)
    back = call_json("privacy", "account", "--noise-multiplier", content["noise_multiplier"], *common)
    assert back["epsilon"] <= epsilon


def test_calibrate_for_the_papers_draw() -> None:
    common = ("--sampling", "one", "--rate", 0.001, "--steps", 20000)
    content = call_json("privacy", "calibrate", "--epsilon", 10, *common)
    # 14.02 x 2C a sample is 14.02 x 2 / sqrt(32) over the bound of a whole block
    assert content["noise_multiplier"] == pytest.approx(14.02 * 2 / 32**0.5, rel=5e-3)


def test_zeroed_costs_less_than_replaced() -> None:
    replaced, zeroed = (
        call_json("privacy", "account", "--noise-multiplier", 1, "--neighbours", neighbours)["epsilon"]
        for neighbours in ("replace-one", "zeroed")
    )
    assert zeroed < replaced
    assert zeroed == pytest.approx(4.377, rel=1e-2)  # mu = 1 at delta 1e-5


def test_account_and_explain_a_run(run: Path) -> None:
    content = call_json("privacy", "account", run)
    assert content["epsilon"] <= 10
    assert content["guarantees"][0]["unit"] == "record"
    text = call("privacy", "explain", run / "release")
    assert "What it does not cover" in text
    assert "delta" in text
    assert "NO GUARANTEE" not in text


def test_release_alone_is_enough_to_sample_and_export(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "release"
    os.rename(run / "release", alone)  # nothing of private/ is needed
    try:
        call("sample", alone, "-n", 7, "--out", tmp_path / "s.npz", "--seed", 1)
        content = np.load(tmp_path / "s.npz")
        assert content["images"].shape == (7, 8, 8)
        assert content["images"].dtype == np.uint8
        assert content["labels"].shape == (7,)
        call("sample", alone, "-n", 50, "--labels", "released", "--out", tmp_path / "r.npz")
        call("export", alone, tmp_path / "png", "-n", 9)
        files = sorted((tmp_path / "png").rglob("*.png"))
        assert len(files) == 9
        assert {path.parent.name for path in files} == {"0", "1", "2"}
        with Image.open(files[0]) as image:
            assert image.size == (8, 8)
        call("export", alone, tmp_path / "set.csv", "-n", 5)
        with (tmp_path / "set.csv").open() as file:
            rows = list(csv.reader(file))
        assert len(rows) == 6
        assert len(rows[1]) == 66
        call("export", alone, tmp_path / "set.npz", "-n", 5)
    finally:
        os.rename(alone, run / "release")


def test_dry_run_prints_the_plan_and_trains_nothing(npz: Path, tmp_path: Path) -> None:
    common = ("train", "--data", npz, "--classes", 3, "--out", tmp_path / "run", "--device", "cpu")
    text = call(*common, "--dry-run")
    assert "what more or less data would buy" in text
    assert "guarantee: epsilon 10" in text
    ensemble = call(*common, "--preset", "ensemble", "--critics", 12, "--steps", 50, "--dry-run")
    assert "epsilon by step (delta, relation and observer as above): " in ensemble
    assert "time:      no estimate for this plan: its steps need data" in ensemble
    assert not (tmp_path / "run").exists()


def test_dry_run_says_which_critic(npz: Path, tmp_path: Path) -> None:
    common = ("train", "--data", npz, "--classes", 3, "--device", "cpu", "--dry-run")
    kernel = call(*common)
    before, advice = kernel.split("which critic: ")
    assert "what more or less data would buy" in before  # the advice comes last
    assert len(advice.splitlines()) <= 6
    assert advice.startswith("kernel (as planned)\n")
    # 96 records, 3 classes, 8x8: 0.99978 x 3 / 96 x 8 sqrt(e); K = 48, q = 1, T = 100, B = 64: 0.99978 x 8 x 8 / 48
    assert "kernel 0.41, ensemble 1.3: the kernel critic has 3.2 times less" in advice
    assert "(ensemble: K = 48, noise 13 a step, averaged over 100 steps" in advice
    assert "enough would be 132 records, or epsilon 15 with these" in advice
    ensemble = call(*common, "--preset", "ensemble", "--critics", 24)
    assert "which critic: kernel (--preset kernel)\n" in ensemble
    assert "kernel 0.41, ensemble 2.7: the kernel critic has 6.5 times less" in ensemble
    paper = call(*common, "--preset", "paper", "--critics", 12, "--steps", 100)
    assert "which critic: kernel (--preset kernel)\n" in paper
    assert "(ensemble: K = 12, noise 17 a step, averaged over 100 steps" in paper  # 2.14 x 8, whatever K is


def test_a_saved_plan_trains(npz: Path, tmp_path: Path) -> None:
    common = ("train", "--data", npz, "--classes", 3, "--device", "cpu")
    call(*common, "--steps", 5, "--save-plan", tmp_path / "plan.json")
    call(*common, "--plan", tmp_path / "plan.json", "--out", tmp_path / "run")
    assert (tmp_path / "run/release/generator.safetensors").exists()


def test_resume_remembers_where_the_data_is(npz: Path, tmp_path: Path, monkeypatch) -> None:
    from gswgan.run import loop

    publish = loop.publish
    monkeypatch.setattr(loop, "publish", lambda *rest: (_ for _ in ()).throw(OSError("disk full")))
    out = tmp_path / "run"
    with pytest.raises(RunError, match="disk full"):
        call("train", "--data", npz, "--classes", 3, "--steps", 5, "--out", out, "--device", "cpu")
    monkeypatch.setattr(loop, "publish", publish)
    monkeypatch.chdir(tmp_path)
    assert "guarantee: epsilon 10" in call("train", "--resume", out, "--device", "cpu")
    assert str(npz) not in "".join(path.read_text() for path in (out / "release").glob("*.json"))


def test_a_new_generator_from_a_release(run: Path, tmp_path: Path) -> None:
    text = call("train", "--from", run, "--steps", 5, "--out", tmp_path / "again", "--device", "cpu")
    assert "adds nothing to its cost" in text
    assert (tmp_path / "again/release/ledger.jsonl").read_bytes() == (run / "release/ledger.jsonl").read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        ("--resume", "RUN", "--dry-run"), ("--from", "RUN", "--dry-run"), ("--resume", "RUN", "--epsilon", "1"),
        ("--from", "RUN", "--delta", "1e-6"), ("--resume", "RUN", "--from", "RUN"),
        ("--from", "RUN", "--insecure-reproducible"),
    ],
)  # fmt: skip
def test_what_a_fixed_plan_would_ignore_is_refused(run: Path, options: tuple[str, ...]) -> None:
    result = runner.invoke(app, ["train", "--device", "cpu", *(str(run) if o == "RUN" else o for o in options)])
    assert isinstance(result.exception, GswganError)
    assert "options" in str(result.exception)


def test_an_insecure_run_is_never_stated_as_a_guarantee(npz: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    common = ("train", "--data", npz, "--classes", 3, "--steps", 3, "--out", out, "--device", "cpu")
    assert "guarantee: NONE" in call(*common, "--insecure-reproducible")
    assert call("privacy", "account", out).startswith("NO GUARANTEE")
    assert call("privacy", "explain", out).startswith("NO GUARANTEE")
    assert call_json("privacy", "account", out)["void"]


def test_the_delta_of_a_preset_can_be_asked_for() -> None:
    assert call_json("privacy", "account", "--preset", "paper", "--delta", 1e-7)["epsilon"] > 611


def test_show_private_is_marked(tmp_path: Path) -> None:
    text = call(
        "train", "--data", "digits", "--steps", 5, "--show-private", "--out", tmp_path / "run", "--device", "cpu"
    )
    assert "PRIVATE, not for release: logistic regression" in text


def test_unlabelled_and_by_person(npz: Path, tmp_path: Path) -> None:
    persons = write_persons(tmp_path / "persons.csv", np.arange(96) // 2)
    common = ("train", "--data", npz, "--steps", 5, "--device", "cpu")
    text = call(*common, "--no-labels", "--out", tmp_path / "one")
    assert "96 records, 1 class, " in text
    text = call(*common, "--classes", 3, "--group-by", persons, "--epsilon", 50, "--out", tmp_path / "two")
    assert "one person replaced" in text
    assert "A person is whatever the records were grouped by" in (tmp_path / "two" / "release" / "card.md").read_text()
    by_person = ("--classes", 3, "--group-by", persons)
    text = call(*common, *by_person, "--preset", "ensemble", "--critics", 8, "--out", tmp_path / "three")
    assert "one person replaced" in text


def test_help_is_quick_to_import() -> None:
    script = "import sys; import gswgan.cli.main; sys.exit('torch' in sys.modules or 'dp_accounting' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
