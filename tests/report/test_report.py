from __future__ import annotations

import functools
import itertools
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("jinja2", reason="needs the extra gswgan[eval]")
pytest.importorskip("matplotlib", reason="needs the extra gswgan[eval]")

from outline import Outline, outside
from report_runs import CANARY, EVIL, OPTIONS, a_copy, a_run, data_of, evaluated

from gswgan.cli.report import report
from gswgan.errors import PrivacyError, RunError
from gswgan.report.page import single_page, strip_uri
from gswgan.report.release import read_release, release_alone
from gswgan.run.folder import RunFolder, find_release
from gswgan.run.loop import run as run_to_the_end
from gswgan.run.retrain import retrain

MEASURED = ("PRIVATE", "accuracy", "Classifier", "nearest", "Membership", "critic_loss", CANARY, "Gaussian NB")


@functools.cache
def page_of(kind: str) -> str:
    """The public page of one run."""
    return single_page(read_release(a_run(kind))).html


def private_page_of(kind: str, tmp_path: Path) -> str:
    report([evaluated(a_copy(kind, tmp_path / kind))], private=True, out=tmp_path / f"page-{kind}")
    return (tmp_path / f"page-{kind}" / "report.html").read_text()


def all_pages(tmp_path: Path) -> dict[str, str]:
    pages = {kind: page_of(kind) for kind in OPTIONS}
    pages |= {f"{kind} private": private_page_of(kind, tmp_path) for kind in ("kernel", "ensemble")}
    runs = [a_run(kind) for kind in ("kernel", "void")]
    report(runs, private=False, out=tmp_path / "several")
    mine = [evaluated(a_copy(kind, tmp_path / f"my-{kind}")) for kind in ("kernel", "paper")]
    report(mine, private=True, out=tmp_path / "several-private")
    for name in ("several", "several-private"):
        pages[name] = (tmp_path / name / "report.html").read_text()
    return pages


def test_every_page_is_self_contained_accessible_and_small(tmp_path: Path) -> None:
    for name, html in all_pages(tmp_path).items():
        assert outside(html) == [], name
        assert "Content-Security-Policy" in html
        assert len(html) < 2_000_000, name
        outline = Outline(html)
        assert outline.headings[0] == 1, name
        assert outline.headings.count(1) == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(outline.headings)), name
        assert len(outline.ids) == len(set(outline.ids)), name
        used = set(re.findall(r'(?:url\(|href=")#([\w-]+)', html))
        assert used <= set(outline.ids), name
        assert ("html", {"lang": "en"}) in outline.tags
        for tag, found in outline.tags:
            assert tag != "th" or found.get("scope") in ("row", "col"), name
            assert tag != "img" or "alt" in found, name
            assert tag != "svg" or (found.get("role") == "img" and found.get("aria-label")), name
        tables = sum(tag == "table" for tag, _ in outline.tags)
        assert tables == sum(tag == "caption" for tag, _ in outline.tags), name
        assert "None" not in re.sub(r"<style>.*?</style>|base64,[^\"]*", "", html, flags=re.DOTALL), name


def test_the_static_test_would_see_a_request() -> None:
    for bad in ('<img src="http://a.b/c.png">', "<script>1</script>", '<img src="//a.b">', "a { color: url(x.png) }",
                '<a href="figures/x.png">', "@import 'x.css'", '<link rel="stylesheet" href="x.css">'):  # fmt: skip
        assert outside(bad), bad
    assert not outside('<img src="data:image/png;base64,ab//http"><a href="#x">y</a>')


def test_the_public_page_is_the_same_without_the_private_part(tmp_path: Path) -> None:
    run = evaluated(a_copy("ensemble", tmp_path / "run"))
    assert CANARY in (run / "private" / "evaluation.json").read_text()
    report([run], private=False, out=None)
    written = {path.name: path.read_bytes() for path in (run / "release").rglob("*") if path.is_file()}
    assert {"report.html", "epsilon.png", "epsilon.svg", "samples.png", "samples.svg"} <= set(written)
    shutil.rmtree(run / "private")
    shutil.rmtree(run / "release" / "figures")
    (run / "release" / "report.html").unlink()
    report([run], private=False, out=None)
    assert written == {path.name: path.read_bytes() for path in (run / "release").rglob("*") if path.is_file()}
    shutil.move(run / "release", tmp_path / "elsewhere")
    report([tmp_path / "elsewhere"], private=False, out=tmp_path / "out")
    assert (tmp_path / "out" / "report.html").read_bytes() == written["report.html"]
    assert not [words for words in MEASURED if words in written["report.html"].decode()]


def test_the_public_reader_has_no_private_paths() -> None:
    run = a_run("kernel")
    alone = release_alone(find_release(run))
    paths = {name: path for name, path in vars(alone).items() if isinstance(path, Path)}
    inside = {name for name, path in paths.items() if path.exists()}
    assert inside == {"release", "model", "privacy", "generator", "embedding", "ledger", "card", "samples"}
    assert all((run / "release") in (path, *path.parents) for path in paths.values())


def test_the_public_page_of_several_runs_is_public_too(tmp_path: Path) -> None:
    runs = [evaluated(a_copy(kind, tmp_path / kind)) for kind in ("kernel", "private")]
    report(runs, private=False, out=tmp_path / "out")
    html = (tmp_path / "out" / "report.html").read_text()
    assert not [words for words in MEASURED if words in html]
    for run in runs:
        shutil.rmtree(run / "private")
    report(runs, private=False, out=tmp_path / "again")
    assert (tmp_path / "again" / "report.html").read_text() == html


def test_kernel_page() -> None:
    html = page_of("kernel")
    release = read_release(a_run("kernel"))
    assert release.embedding is not None
    assert 'Synthetic images after <span class="data">stripes</span>' in html
    for words in ("epsilon 10 at delta 0.00001", "moderate protection", "replace-one", "record", "public",
                  "privacy-loss distribution", "a factor of at most 22,0", "What is not covered", release.head,
                  "Signal and noise of the release by class"):  # fmt: skip
        assert words in html, words
    sums, noise = release.embedding.sums.norm(dim=1), release.embedding.noise_std * 64**0.5
    for label in range(3):
        assert f'{sums[label]:.1f}</td><td class="number">{noise:.1f}</td>' in html
        assert f"{release.embedding.counts[label]:.1f}</td></tr>" in html
    assert html.count("data:image/png") == 6  # two strips a class
    assert "NO GUARANTEE" not in html
    assert "claim" not in re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL).lower()


def test_ensemble_page() -> None:
    html = page_of("ensemble")
    plan = read_release(a_run("ensemble")).plan
    assert "Epsilon over the steps" in html
    assert all(f">{done:,}</th>" in html for done, _ in plan.curve)
    assert "Signal and noise" not in html


def test_the_claim_stands_beside_the_guarantee() -> None:
    html = page_of("paper")
    release = read_release(a_run("paper"))
    assert release.claimed is not None
    assert release.claimed["epsilon"] < release.cost.epsilon / 3
    rows = re.findall(r'<th scope="row">([^<]*)</th><td class="number">([\d,.]+)</td>', html)
    found = {name: float(value.replace(",", "")) for name, value in rows}
    assert found["The guarantee"] == pytest.approx(release.cost.epsilon, rel=1e-3)
    claimed = found["Claimed by the paper's accounting, not a guarantee"]
    assert claimed == pytest.approx(release.claimed["epsilon"], rel=1e-3)
    assert "this does not hold" in html


def test_a_void_run_says_so_everywhere(tmp_path: Path) -> None:
    html = page_of("void")
    assert "<strong>NO GUARANTEE</strong>" in html
    assert "There is none." in html
    assert "protection" not in html
    assert "It holds against" not in html
    report([a_run("kernel"), a_run("void")], private=False, out=tmp_path / "two")
    assert (tmp_path / "two" / "report.html").read_text().count("NO GUARANTEE") == 2


def test_other_kinds_of_data() -> None:
    assert page_of("unlabelled").count("data:image/png") == 8
    people = page_of("persons")
    assert "one person" in people
    assert "all images of any of 100" in people
    assert "any one person" in people
    assert "32 × 32, colour" in page_of("colour")


def test_names_are_escaped_everywhere(tmp_path: Path) -> None:
    run = evaluated(a_copy("evil", tmp_path / '<b>run&"'))
    report([run], private=True, out=tmp_path / "one")
    report([run, a_run("kernel")], private=False, out=tmp_path / "two")
    for place in ("one", "two"):
        html = (tmp_path / place / "report.html").read_text()
        assert "<script" not in html
        assert "onerror=alert(2)&gt;" in html
        assert '"><img src=x' not in html
        assert "<b>run" not in html
        assert outside(html) == []
        for drawing in (tmp_path / place / "figures").glob("*.svg"):
            assert "<script" not in drawing.read_text()
    assert "&lt;b&gt;run&amp;" in html
    assert EVIL[2].split()[1] in html  # $a_b$ is not taken for mathematics


def test_private_page(tmp_path: Path) -> None:
    html = private_page_of("ensemble", tmp_path)
    for words in ("PRIVATE.", "Do not publish", "Gaussian NB", "0.803", "± 0.001", "0.950", "84.5 %", "Inception score",
                  "7.253", "9.500", "Share that is closer to a training record", "Membership attack: AUC", "0.523",
                  "Mean loss of the critics", "Gradient norms", "gswgan[fid]", "0.074", "standard error 0.0072",
                  "by class", "0.773", "nearest of all training records", "the same of held-out ones"):  # fmt: skip
        assert words in html, words
    private = re.findall(r'<section id="(\w+)" class="private">\s*<h2><span class="mark">PRIVATE</span>', html)
    assert private == ["utility", "beside", "memory", "training"]
    assert "No real images are shown: the run does not know where its data lies" in html
    figures = {path.stem for path in (tmp_path / "page-ensemble" / "figures").iterdir()}
    assert figures == {"samples", "epsilon", "utility", "training", "norms"}


@pytest.mark.parametrize("kind", ["kernel", "colour", "unlabelled"])
def test_real_images_stand_beside_synthetic_ones_on_the_private_page_alone(kind: str, tmp_path: Path) -> None:
    run, data = a_copy(kind, tmp_path / "run"), data_of(kind)
    stored = data.images.transpose(0, 2, 3, 1)
    labels = {} if data.labels is None else {"labels": data.labels}
    np.savez(tmp_path / "data.npz", images=stored, **labels)
    RunFolder(run).remember_source({"spec": str(tmp_path / "data.npz"), "classes": data.classes if labels else None})
    report([run], private=True, out=tmp_path / "private")
    report([run], private=False, out=tmp_path / "public")
    private, public = ((tmp_path / name / "report.html").read_text() for name in ("private", "public"))
    strips = re.findall(r'<img src="(data:[^"]+)" alt="Real images', private)
    assert len(strips) == data.classes
    order = np.random.default_rng(0).permutation(data.n)
    mine = order if data.labels is None else order[data.labels[order] == 0]
    expected = stored[mine[:8]]
    assert strips[0] == strip_uri(expected[..., 0] if data.channels == 1 else expected)
    assert private.count('alt="Synthetic images') > public.count('alt="Synthetic images')
    assert "Real images" not in public
    assert not any(strip in public for strip in strips)
    (tmp_path / "data.npz").unlink()
    report([run], private=True, out=tmp_path / "private")
    assert "No real images are shown: the data cannot be read" in (tmp_path / "private" / "report.html").read_text()


def test_private_pages_are_for_the_owner_alone(tmp_path: Path) -> None:
    run = evaluated(a_copy("kernel", tmp_path / "run"))
    before = sorted(path.name for path in (run / "release").iterdir())
    report([run], private=True, out=None)
    assert (run / "private" / "report.html").stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in (run / "release").iterdir()) == before
    for place in (run / "release", run / "release" / "deeper"):
        with pytest.raises(RunError, match="outside every release"):
            report([run], private=True, out=place)
    report([run], private=True, out=tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode & 0o077 == 0
    assert (tmp_path / "out" / "figures" / "utility.png").exists()
    (tmp_path / "out" / "figures" / "mine.png").write_text("kept")
    report([run], private=False, out=tmp_path / "out")  # a public page takes the place of a private one
    left = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert left == {"samples.png", "samples.svg", "signal.png", "signal.svg", "mine.png"}


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_copy("kernel", tmp_path / "run")
    (run / "private" / "metrics.jsonl").unlink(missing_ok=True)
    report([run], private=True, out=None)
    html = (run / "private" / "report.html").read_text()
    assert "Not measured yet" in html
    assert "Nothing was logged" in html
    assert "gswgan evaluate RUN" in capsys.readouterr().out
    evaluated(run)
    folder = RunFolder(run)
    stale = (folder.private / "evaluation.json").read_text().replace('"synthetic": "', '"synthetic": "0')
    (folder.private / "evaluation.json").write_text(stale)
    report([run], private=True, out=None)
    html = (run / "private" / "report.html").read_text()
    assert "of another generator" in html
    assert "Gaussian NB" not in html


def test_a_generator_on_a_released_embedding_adds_nothing(tmp_path: Path) -> None:
    folder = retrain(a_run("kernel"), tmp_path / "again", steps=8, device="cpu", seed=1)
    assert run_to_the_end(folder, None, device=torch.device("cpu"))
    release = read_release(tmp_path / "again")
    assert release.cost == read_release(a_run("kernel")).cost
    assert "this generator adds nothing to its cost" in single_page(release).html
    report([a_run("kernel"), tmp_path / "again"], private=False, out=tmp_path / "two")
    assert "together they cost what one of them costs" in (tmp_path / "two" / "report.html").read_text()


def test_bad_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_copy("kernel", tmp_path / "run")
    with pytest.raises(RunError, match="different runs"):
        report([run, run / "release"], private=False, out=tmp_path)
    with pytest.raises(RunError, match="a run folder or its release folder"):
        report([tmp_path], private=False, out=None)
    shutil.copytree(run / "release", tmp_path / "alone")
    with pytest.raises(RunError, match="private part"):
        report([tmp_path / "alone"], private=True, out=tmp_path / "out")
    stated = (run / "release" / "privacy.json").read_text()
    (run / "release" / "privacy.json").write_text(re.sub(r'"epsilon": [\d.]+', '"epsilon": 1.0', stated))
    with pytest.raises(PrivacyError, match="which its ledger costs"):
        report([run], private=False, out=tmp_path / "out")
    (run / "release" / "generator.safetensors").unlink()
    with pytest.raises(RunError, match="--resume"):
        report([run], private=False, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"gswgan\[eval\]"):
        report([a_run("kernel")], private=False, out=tmp_path / "out")
