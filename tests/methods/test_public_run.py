"""Preset `refined` with public images: the statement in every place, what is refused, a stop in every stage."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import gswgan
from conftest import MNIST
from gswgan.critics.refined.draws import noise_levels
from gswgan.critics.refined.gradients import Gradients
from gswgan.data.public import PublicImages
from gswgan.errors import GswganError, PlanError, RunError
from gswgan.generators import GeneratorSettings
from gswgan.methods import make_plan, read_plan
from gswgan.plan.facts import Facts, PublicFacts
from gswgan.plan.plan import Plan
from gswgan.release.pack import pack
from gswgan.release.page import page_of
from gswgan.release.verify import verify
from gswgan.run import loop
from gswgan.run.folder import RunFolder
from public_shapes import QUICK, photos, shapes

CPU = torch.device("cpu")


def small(public: PublicImages | None = None, **changes) -> Plan:
    """A few steps of each stage: 4 with the kernel, 3 on public images, 3 on samples, 3 of DP-SGD."""
    stated = None if public is None else PublicFacts.of(public)
    plan = make_plan(Facts.of(shapes()), preset="refined", steps=3, public=stated)
    first = 0 if public is None else 3
    critic = dataclasses.replace(
        plan.critic, steps=4, public_steps=first, pretraining=3, pretraining_batch=16, samples=64, draws=2,
        kernel=dataclasses.replace(plan.critic.kernel, features=64, **(QUICK if public is not None else {})),
        start=GeneratorSettings(architecture="mlp", width=16),
    )  # fmt: skip
    training = dataclasses.replace(plan.training, steps=10 + first, batch_size=12)
    generator = dataclasses.replace(plan.generator, width=4)
    return dataclasses.replace(plan, critic=critic, training=training, generator=generator, curve=(), **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    public = photos()
    folder = RunFolder.create(tmp_path_factory.mktemp("public") / "run", small(public), public=public)
    assert loop.run(folder, shapes(), device=CPU)
    return folder


def test_the_statement_is_in_plan_privacy_card_report_and_verify(finished: RunFolder, tmp_path: Path) -> None:
    digest = photos().digest
    stated = {"name": "arrays", "images": 40, "digest": digest}
    assert json.loads(finished.model.read_text())["plan"]["public"] == stated
    text = f"trained with 40 public images that are not protected (arrays, SHA-256 {digest}); the features were "
    text += "trained on them as well"
    encoder = hashlib.sha256(finished.encoder.read_bytes()).hexdigest()
    found = json.loads(finished.privacy.read_text())["public_images"]
    assert found == {**stated, "statement": text, "encoder": encoder}
    assert "trained with 40 public images that are not protected" in finished.card.read_text()
    assert digest in finished.card.read_text()
    page = page_of(finished.root).decode()
    assert text in page
    assert "a denoiser from that generator's images and from the public images" in page
    pack(finished.root, tmp_path / "packed")
    verdict = verify(tmp_path / "packed")
    assert not verdict.findings
    assert text in verdict.describe(None)
    assert "whether the public images are public" in verdict.describe(None)
    assert not finished.public_images.exists()  # it was kept for the time of the run


@pytest.mark.parametrize("change", [{"digest": "0" * 64}, {"images": 39}, {"statement": "no public images"}, None])
def test_a_bundle_with_another_statement_does_not_verify(finished: RunFolder, tmp_path: Path, change) -> None:
    pack(finished.root, tmp_path / "packed")
    path, manifest = tmp_path / "packed" / "privacy.json", tmp_path / "packed" / "manifest.json"
    content = json.loads(path.read_text())
    if change is None:
        del content["public_images"]
    else:
        content["public_images"] |= change
    path.write_text(json.dumps(content, indent=1) + "\n")
    listed = json.loads(manifest.read_text())
    listed["files"]["privacy.json"] = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(listed, indent=1) + "\n")
    assert [finding.where for finding in verify(tmp_path / "packed").findings] == ["privacy.json"]


def test_a_plan_whose_statement_was_edited_is_refused() -> None:
    content = small(photos()).to_json()
    content["public"]["images"] = 41
    with pytest.raises(PlanError, match="damaged or edited"):
        read_plan(content)
    for wrong in ({"digest": "0" * 63}, {"images": 3}, {"name": "a\nb"}):
        with pytest.raises(PlanError, match=r"public|images"):
            PublicFacts(**{"name": "photos", "images": 40, "digest": "0" * 64, **wrong})


def test_other_public_images_than_the_planned_ones_are_refused(tmp_path: Path) -> None:
    plan = small(photos())
    for given in (None, photos(seed=2), photos(39)):
        with pytest.raises(PlanError, match="Pass --public with the images that the plan was made with"):
            RunFolder.create(tmp_path / "run", plan, public=given)
    with pytest.raises(PlanError, match="the plan states none"):
        RunFolder.create(tmp_path / "run", small(), public=photos())
    folder = RunFolder.create(tmp_path / "run", plan, public=photos())
    other = RunFolder.create(tmp_path / "other", small(photos(seed=2)), public=photos(seed=2))
    folder.public_images.write_bytes(other.public_images.read_bytes())
    with pytest.raises(RunError, match="the public images of the plan"):
        loop.run(folder, shapes(), device=CPU)


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "ensemble-alone"},
        {"preset": "ensemble"},
        {"preset": "paper"},
        {"method": "dp-merf"},
        {"method": "gan"},
    ],
    ids=str,
)
def test_who_has_no_use_for_them_says_so(options: dict) -> None:
    with pytest.raises(PlanError, match=r"public = '40 images'.*has no use for them.*--preset refined"):
        make_plan(MNIST, **options, public=PublicFacts.of(photos()))
    plan = make_plan(MNIST, preset="kernel")
    with pytest.raises(PlanError, match="none with preset kernel"):
        dataclasses.replace(plan, public=PublicFacts.of(photos()))


def test_steps_on_public_images_and_the_statement_belong_together() -> None:
    plan = small(photos())
    with pytest.raises(PlanError, match="exactly where public images are stated"):
        dataclasses.replace(plan, public=None)
    with pytest.raises(PlanError, match="as accounted for"):
        dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, public_steps=4))


def test_public_images_change_nothing_that_the_guarantee_rests_on() -> None:
    ours, without = (make_plan(MNIST, preset="refined", public=given) for given in (PublicFacts.of(photos()), None))
    assert ours.total() == without.total()
    assert ours.guarantee == without.guarantee
    assert ours.digest() != without.digest()
    assert "public" not in without.to_json()
    assert "public_steps" not in without.to_json()["critic"]  # as plans that are older than public images


@pytest.mark.parametrize("stop", [4, 5, 7, 8, 10, 11])
def test_a_run_that_was_stopped_in_any_stage_goes_on_to_the_same_bytes(tmp_path: Path, stop: int) -> None:
    public = photos()
    plan = small(public, insecure_reproducible=True)
    straight, stopped = (RunFolder.create(tmp_path / name, plan, public=public) for name in ("straight", "stopped"))
    assert loop.run(straight, shapes(), device=CPU)

    def interrupt(done: int) -> None:
        if done == stop:
            signal.raise_signal(signal.SIGINT)

    assert not loop.run(stopped, shapes(), device=CPU, progress=interrupt)
    assert loop.run(stopped, shapes(), device=CPU)
    assert stopped.generator.read_bytes() == straight.generator.read_bytes()


def test_public_images_come_first_and_then_get_the_smallest_noise_levels(tmp_path: Path, monkeypatch) -> None:
    public, seen = photos(), []
    real = Gradients.of_samples

    def of_samples(self, images, labels, seed):
        seen.append((images.clone(), labels.clone()))
        return real(self, images, labels, seed)

    monkeypatch.setattr(Gradients, "of_samples", of_samples)
    plan = small(public)
    folder = RunFolder.create(tmp_path / "run", plan, public=public)
    assert loop.run(folder, shapes(), device=CPU)
    known = {image.tobytes() for image in public.images}

    def are_public(images: torch.Tensor) -> list[bool]:
        return [(image * 255).round().to(torch.uint8).numpy().tobytes() in known for image in images]

    assert [are_public(images) for images, _ in seen[:3]] == [[True] * 16] * 3
    assert [are_public(images) for images, _ in seen[3:6]] == [[True] * 8 + [False] * 8] * 3
    assert are_public(seen[6][0]) == [True] * 32 + [False] * 32  # the preconditioner is of batches like these
    assert {int(label) for _, labels in seen[:6] for label in labels} == {0, 1, 2}
    levels = noise_levels(torch.tensor(5), torch.tensor([0]), 16)[0]
    assert torch.equal(levels, levels.sort().values)


def test_the_denoiser_learns_from_public_images(tmp_path: Path) -> None:
    """After some steps on images of the same kind it is nearer to the data than without them, before any record."""
    public = PublicImages(name="shapes", images=shapes(192, seed=3).images)
    assert loss_before_records(tmp_path / "with", public) < 0.9 * loss_before_records(tmp_path / "without", None)


def loss_before_records(place: Path, public: PublicImages | None) -> float:
    from gswgan.generators.denoiser import loss_of_draws

    plan = small(public)
    first = 0 if public is None else 300
    critic = dataclasses.replace(plan.critic, public_steps=first, pretraining=100)
    training = dataclasses.replace(plan.training, steps=4 + first + 100 + 3)
    plan = dataclasses.replace(plan, critic=critic, training=training)
    folder = RunFolder.create(place, plan, public=public)
    generator = loop.make_generator(plan, CPU)
    made = loop.make_critic(plan, folder, shapes(), CPU)
    made.prepare(shapes())
    loop.train(plan, made, generator, after_step=lambda done: done == training.steps - 3)
    other, rng = shapes(48, seed=5), torch.Generator().manual_seed(0)
    images = torch.from_numpy(other.images).permute(0, 2, 3, 1).float() / 127.5 - 1
    noise, levels = torch.randn(images.shape, generator=rng), torch.full((48,), 0.2)
    with torch.no_grad():
        found = loss_of_draws(generator.denoised.denoiser, images, noise, levels, torch.from_numpy(other.labels))
    return float(found.mean())


def test_python_takes_them_as_public(tmp_path: Path) -> None:
    data = shapes()
    images = np.moveaxis(data.images, 1, -1)
    model = gswgan.GSWGAN(preset="refined", verbose=False)
    plan = model.plan(images, data.labels, classes=3, public=np.moveaxis(photos().images, 1, -1))
    assert plan.plan.public.images == 40
    assert "trained with 40 public images that are not protected" in str(plan)
    with pytest.raises(GswganError, match="all images are equal"):
        model.plan(images, data.labels, classes=3, public=images)
    with pytest.raises(GswganError, match="has no use for them"):
        gswgan.GSWGAN(preset="ensemble", verbose=False).plan(images, data.labels, classes=3, public=images[:40])


def test_a_folder_that_died_with_public_images_and_without_its_plan_may_be_made_again(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", small(photos()), public=photos())
    folder.model.unlink()  # it is written last
    assert folder.is_vacant()
    again = RunFolder.create(tmp_path / "run", small(photos(seed=2)), public=photos(seed=2))
    assert loop.run(again, shapes(), device=CPU)
