"""Runs with an encoder: what is in the release, what tampering is found, that no record reaches it, stops."""

from __future__ import annotations

import dataclasses
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from packed import edit, repack

from gswgan.critics.kernel.embedding import Embedding, record_blocks
from gswgan.critics.kernel.features import features_of
from gswgan.data import ImageData, open_stream
from gswgan.errors import PlanError, RunError
from gswgan.generators import GeneratorSettings
from gswgan.methods import make_plan, read_plan
from gswgan.plan.facts import Facts, PublicFacts, Silos, Site
from gswgan.plan.plan import Plan
from gswgan.privacy import Contribution
from gswgan.privacy.mechanism import clipped_sum
from gswgan.release.pack import pack
from gswgan.release.verify import verify
from gswgan.run import folder as run_folder
from gswgan.run import loop
from gswgan.run.folder import RunFolder
from gswgan.run.retrain import retrain
from many_files import write_npz
from public_shapes import QUICK, photos, shapes

CPU = torch.device("cpu")
RECORDS = 300


def small(preset: str = "kernel", **changes) -> Plan:
    public = PublicFacts.of(photos())
    plan = make_plan(Facts.of(shapes(RECORDS)), preset=preset, steps=4, public=public)
    critic = dataclasses.replace(plan.critic, features=64, **QUICK)
    generator = GeneratorSettings(architecture="mlp", width=16)
    return dataclasses.replace(plan, critic=critic, generator=generator, curve=(), **changes)


def made(place: Path, plan: Plan | None = None, data: ImageData | None = None) -> RunFolder:
    folder = RunFolder.create(place, small() if plan is None else plan, public=photos())
    assert loop.run(folder, shapes(RECORDS) if data is None else data, device=CPU)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return made(tmp_path_factory.mktemp("encoder") / "run")


def exact_sums(plan: Plan, encoder: bytes, data: ImageData) -> np.ndarray:
    features = features_of(plan.critic.kernel_settings, data.channels, data.image_size, CPU, encoder)
    contribution = Contribution(clip_norm=1.0, counts=True)
    total = clipped_sum(record_blocks(data, features), contribution, slots=data.classes, width=features.width).total
    return total[:, :-1] / 2.0**26


def test_features_can_be_recomputed_from_the_release(finished: RunFolder, tmp_path: Path) -> None:
    """The released sums differ from those of anybody who has release and data by the noise; with other weights more."""
    pack(finished.root, tmp_path / "packed")
    verdict = verify(tmp_path / "packed")
    assert not verdict.findings
    assert "that the encoder was trained on the public images alone" in verdict.describe(None)
    plan, content = read_plan(small().to_json()), (tmp_path / "packed" / "encoder.safetensors").read_bytes()
    released = Embedding.load(tmp_path / "packed" / "embedding.safetensors")
    noise = released.sums.numpy() - exact_sums(plan, content, shapes(RECORDS))
    assert np.sqrt(np.mean(noise**2)) == pytest.approx(released.noise_std, rel=0.25)
    weights = safetensors.torch.load(content)
    other = safetensors.torch.save({**weights, "0.weight": weights["0.weight"].flip(0)})
    noise = released.sums.numpy() - exact_sums(plan, other, shapes(RECORDS))
    assert np.sqrt(np.mean(noise**2)) > 4 * released.noise_std
    assert not finished.encoder_state.exists()
    assert "were trained on them as well" in finished.card.read_text()
    assert "half of 2 convolutional layers trained on public images for 3 steps" in finished.card.read_text()


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def tamper(folder: Path) -> None:
        found = safetensors.torch.load_file(folder / "encoder.safetensors")
        change(found)
        (folder / "encoder.safetensors").write_bytes(safetensors.torch.save(found, {"format_version": "1"}))

    return tamper


def stated(folder: Path) -> None:
    """The encoder's digest in privacy.json, made to fit."""
    found = run_folder.hashlib.sha256((folder / "encoder.safetensors").read_bytes()).hexdigest()
    edit(folder / "privacy.json", lambda content: content["public_images"].update(encoder=found))


TAMPERS = {
    "another weight": ("privacy.json", weights(lambda found: found["1.bias"].add_(1))),
    "no encoder": ("encoder.safetensors", lambda folder: (folder / "encoder.safetensors").unlink()),
    "no digest": ("privacy.json", lambda folder: edit(
        folder / "privacy.json", lambda content: content["public_images"].pop("encoder"))),
    "nan": ("encoder.safetensors", lambda folder: (
        weights(lambda found: found["scale"].fill_(torch.nan))(folder), stated(folder))),
    "another shape": ("encoder.safetensors", lambda folder: (
        weights(lambda found: found.update({"1.bias": torch.zeros(7)}))(folder), stated(folder))),
    "one more": ("encoder.safetensors", lambda folder: (
        weights(lambda found: found.update(records=torch.zeros(2)))(folder), stated(folder))),
    "another one, stated": ("embedding.safetensors", lambda folder: (
        weights(lambda found: found["1.bias"].add_(1))(folder), stated(folder))),
    "other statement": ("privacy.json", lambda folder: edit(
        folder / "privacy.json", lambda content: content["public_images"].update(statement="no public images"))),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERS)
def test_tampering_with_the_encoder_is_found(finished: RunFolder, tmp_path: Path, name: str) -> None:
    pack(finished.root, tmp_path / "packed")
    where, tamper = TAMPERS[name]
    tamper(tmp_path / "packed")
    assert verify(repack(tmp_path / "packed")).findings[0].where == where


def depends_on_records(place: Path) -> bool:
    """Whether two data sets with equal facts, and one seed, get different encoders."""
    dark = dataclasses.replace(shapes(RECORDS), images=shapes(RECORDS).images // 3)
    plan, found = small(), []
    for name, data in (("one", shapes(RECORDS)), ("other", dark)):
        folder = RunFolder.create(place / name, plan, public=photos())
        loop.make_critic(plan, folder, data, CPU)
        found.append(folder.encoder.read_bytes())
    return found[0] != found[1]


def test_the_encoder_never_sees_a_record(tmp_path: Path) -> None:
    assert not depends_on_records(tmp_path)


def test_an_encoder_that_sees_records_is_found(tmp_path: Path, monkeypatch) -> None:
    real = loop.make_critic

    def leaky(plan: Plan, folder: RunFolder, data: ImageData, *rest: object):
        monkeypatch.setattr(run_folder, "kept_public", lambda path, plan: data.images)
        return real(plan, folder, data, *rest)

    monkeypatch.setattr(loop, "make_critic", leaky)
    assert depends_on_records(tmp_path)


def test_a_stop_while_the_encoder_is_trained_loses_nothing(tmp_path: Path) -> None:
    plan = small(insecure_reproducible=True)
    straight = made(tmp_path / "straight", plan)
    folder = RunFolder.create(tmp_path / "stopped", plan, public=photos())

    def interrupt(text: str) -> None:
        if text.startswith("training the encoder on public images: 33 %"):
            signal.raise_signal(signal.SIGINT)

    assert not loop.run(folder, shapes(RECORDS), device=CPU, note=interrupt)
    assert folder.encoder_state.exists()
    assert not folder.encoder.exists()
    assert not folder.ledger.exists()  # nothing was released
    notes: list[str] = []
    assert loop.run(folder, shapes(RECORDS), device=CPU, note=notes.append)
    assert notes[0].startswith("training the encoder on public images: 66 %")
    for name in ("encoder", "embedding", "generator"):
        assert getattr(folder, name).read_bytes() == getattr(straight, name).read_bytes()


def test_a_run_that_died_after_its_encoder_keeps_it(tmp_path: Path, monkeypatch) -> None:
    plan = small()
    folder = RunFolder.create(tmp_path / "run", plan, public=photos())
    with monkeypatch.context() as patch:
        patch.setattr(loop.RunFolder, "is_finished", property(lambda self: False))
        loop.make_critic(plan, folder, shapes(RECORDS), CPU)
    content = folder.encoder.read_bytes()
    notes: list[str] = []
    assert loop.run(folder, shapes(RECORDS), device=CPU, note=notes.append)
    assert folder.encoder.read_bytes() == content
    assert not any("encoder" in note for note in notes)


def test_a_run_whose_encoder_is_gone_does_not_go_on_with_another(finished: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(Path(shutil.copytree(finished.root, tmp_path / "run")))
    copy.encoder.unlink()
    with pytest.raises(RunError, match="the encoder that the embedding was released with"):
        copy.plan().critic.reuse(copy.plan(), copy.embedding, CPU)


def test_a_stopped_run_whose_encoder_is_gone_is_not_given_another(tmp_path: Path) -> None:
    """The embedding was released with the first one: with another, what is released would contradict itself."""
    folder = RunFolder.create(tmp_path / "run", small(), public=photos())

    def interrupt(done: int) -> None:
        if done == 2:
            signal.raise_signal(signal.SIGINT)

    assert not loop.run(folder, shapes(RECORDS), device=CPU, progress=interrupt)
    kept, ledger = folder.encoder.read_bytes(), folder.ledger.read_bytes()
    folder.encoder.unlink()
    with pytest.raises(RunError, match=r"the encoder that the embedding was released with.*Restore the file"):
        loop.run(folder, shapes(RECORDS), device=CPU)
    assert not folder.encoder.exists()
    folder.encoder.write_bytes(other_weights(kept))
    with pytest.raises(RunError, match=r"with which the embedding was released.*Restore its file"):
        loop.run(folder, shapes(RECORDS), device=CPU)
    folder.encoder.write_bytes(kept)
    assert loop.run(folder, shapes(RECORDS), device=CPU)
    assert folder.ledger.read_bytes() == ledger


def other_weights(encoder: bytes) -> bytes:
    found = safetensors.torch.load(encoder)
    return safetensors.torch.save({**found, "0.weight": found["0.weight"].flip(0)}, {"format_version": "1"})


def test_sums_that_were_begun_do_not_go_on_with_another_encoder(tmp_path: Path) -> None:
    stream = open_stream(write_npz(tmp_path / "set", shapes(RECORDS), files=3), classes=3)
    plan = dataclasses.replace(small(), facts=Facts.of(stream))
    folder = RunFolder.create(tmp_path / "run", plan, public=photos())

    def interrupt(done: int, total: int) -> None:
        if 0 < done < total:
            signal.raise_signal(signal.SIGINT)

    assert not loop.run(folder, stream, device=CPU, reading=interrupt, workers=1)
    assert folder.sums.exists()
    assert not folder.embedding.exists()
    kept = folder.encoder.read_bytes()
    folder.encoder.write_bytes(other_weights(kept))
    with pytest.raises(RunError, match="with which the first records were summed"):
        loop.run(folder, stream, device=CPU, workers=1)
    folder.encoder.write_bytes(kept)
    assert loop.run(folder, stream, device=CPU, workers=1)


def test_another_generator_on_a_bundle_has_the_same_encoder(finished: RunFolder, tmp_path: Path) -> None:
    pack(finished.root, tmp_path / "packed")
    again = retrain(tmp_path / "packed", tmp_path / "again", steps=3, device="cpu", seed=7)
    assert loop.run(again, None, device=CPU)
    assert again.encoder.read_bytes() == finished.encoder.read_bytes()
    pack(again.root, tmp_path / "packed-again")
    assert not verify(tmp_path / "packed-again").findings


def test_data_that_stays_in_its_files_is_seen_through_the_same_encoder(tmp_path: Path) -> None:
    data = shapes(RECORDS)
    stream = open_stream(write_npz(tmp_path / "set", data, files=4), classes=3)
    plan = dataclasses.replace(small(), facts=Facts.of(stream), insecure_reproducible=True)
    one, other = (RunFolder.create(tmp_path / name, plan, public=photos()) for name in ("memory", "stream"))
    in_memory = dataclasses.replace(data, name=stream.name, class_names=stream.class_names)
    assert loop.run(one, in_memory, device=CPU)
    assert loop.run(other, stream, device=CPU, workers=2)
    assert one.encoder.read_bytes() == other.encoder.read_bytes()
    sums, streamed = (Embedding.load(folder.embedding).sums for folder in (one, other))
    assert torch.allclose(sums, streamed, atol=1e-4)


def test_an_encoder_belongs_to_public_images_and_to_one_place(tmp_path: Path) -> None:
    plan = small()
    with pytest.raises(PlanError, match="exactly where public images are stated"):
        dataclasses.replace(plan, public=None)
    with pytest.raises(PlanError, match="exactly where public images are stated"):
        dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, convolutions=()))
    for device in ("cpu", "cuda"):
        for preset in ("kernel", "refined"):
            kernel = make_plan(plan.facts, preset=preset, device=device, public=plan.public).critic.kernel_settings
            assert kernel.encoder_steps > 0
    with_them, without = (make_plan(plan.facts, preset="kernel", public=given) for given in (plan.public, None))
    sites = tuple(Site(name=name, records=RECORDS // 2) for name in ("north", "south"))
    with pytest.raises(PlanError, match="sites and clients get a plan and no encoder"):
        dataclasses.replace(plan, facts=dataclasses.replace(plan.facts, silos=Silos(sites=sites, min_sites=1)))
    assert with_them.guarantee == without.guarantee
    assert with_them.total() == without.total()
