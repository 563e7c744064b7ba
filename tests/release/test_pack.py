"""`gswgan release`: only what may be published, the same bytes every time, nothing where it cannot be verified."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from packed import a_copy, a_finished_run, a_release, edit, repack
from report_runs import a_copy as a_run_copy
from typer.testing import CliRunner

from gswgan.cli.main import app
from gswgan.errors import PrivacyError, RunError
from gswgan.release.files import MANIFEST, checksum
from gswgan.release.pack import pack
from gswgan.release.verdict import UNSEEN
from gswgan.release.verify import verify
from processes import command_line


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = a_run_copy("kernel", tmp_path / "run")
    assert pack(run, tmp_path / "one") == pack(run / "release", tmp_path / "two") == []
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(a_release("kernel"))


def test_only_what_may_be_published_is_packed(tmp_path: Path) -> None:
    run = a_run_copy("kernel", tmp_path / "run")
    (run / "release" / "figures").mkdir()
    (run / "release" / "records.npz").write_text("1")
    (run / "release" / ".model.json.part").write_text("1")
    assert pack(run, tmp_path / "out") == [".model.json.part", "figures", "records.npz"]
    assert contents(tmp_path / "out") == contents(a_release("kernel"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_a_page_is_made_again_packed_and_not_vouched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`release`, `report` and `verify` agree: whatever stood in the run's page, the packed one is our own."""
    run = a_run_copy("kernel", tmp_path / "run")
    (run / "release" / "report.html").write_text("record 17")
    assert pack(run, tmp_path / "out") == []
    page = (tmp_path / "out" / "report.html").read_text()
    assert "record 17" not in page
    assert "Synthetic images after" in page
    assert sorted(contents(tmp_path / "out")) == sorted([*contents(a_release("kernel")), "report.html"])
    done = CliRunner().invoke(app, ["verify", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "report.html, as this version makes it" in done.output
    (tmp_path / "out" / "report.html").write_text(page.replace("epsilon 10", "epsilon 1"))
    assert "report.html" in str(verify(tmp_path / "out").findings[0])  # another checksum
    done = CliRunner().invoke(app, ["verify", str(repack(tmp_path / "out"))])
    assert "report.html, NOT THE PAGE" in done.output
    monkeypatch.setattr("gswgan.release.verify.can_make_page", lambda: False)
    assert verify(tmp_path / "out").page.startswith("NOT CHECKED")


def test_a_page_is_not_written_into_a_packed_release(tmp_path: Path) -> None:
    folder = a_copy("kernel", tmp_path / "release")
    before = contents(folder)
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    assert contents(folder) == before
    assert (tmp_path / "release-report" / "report.html").exists()
    assert verify(folder).findings == ()
    for place in (folder, folder / "deeper"):
        with pytest.raises(RunError, match="outside the bundle"):
            CliRunner().invoke(app, ["report", str(folder), "--out", str(place)], catch_exceptions=False)
    assert contents(folder) == before


def test_a_pipe_in_the_run_is_refused_and_not_opened(tmp_path: Path) -> None:
    for name in ("card.md", "embedding.safetensors", "model.json"):
        run = a_run_copy("kernel", tmp_path / name)
        (run / "release" / name).unlink()
        os.mkfifo(run / "release" / name)  # reading it would wait for ever
        with pytest.raises(RunError, match=f"{name}.*a plain file"):
            pack(run, tmp_path / "out")


def test_what_has_no_guarantee_or_has_not_ended_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="insecure-reproducible"):
        pack(a_finished_run("void"), tmp_path / "out")
    with pytest.raises(PrivacyError, match="Not for release"):
        pack(a_finished_run("gan"), tmp_path / "out")
    run = a_run_copy("kernel", tmp_path / "run")
    (run / "release" / "generator.safetensors").unlink()
    with pytest.raises(RunError, match="finished run"):
        pack(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_verified_is_not_packed(tmp_path: Path) -> None:
    run = a_run_copy("kernel", tmp_path / "run")
    edit(run / "release" / "privacy.json", lambda content: content.update(epsilon=1.0))
    with pytest.raises(RunError, match="states epsilon 1,"):
        pack(run, tmp_path / "out")
    (run / "release" / "privacy.json").write_bytes((a_release("kernel") / "privacy.json").read_bytes())
    (run / "release" / "card.md").unlink()
    with pytest.raises(RunError, match=r"card\.md' is missing"):
        pack(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    for out in (tmp_path / "out", tmp_path, tmp_path / "no" / "folder"):
        with pytest.raises(RunError, match="out"):
            pack(a_finished_run("kernel"), out)


def test_the_command_line_packs_and_verifies_with_no_private_file(tmp_path: Path) -> None:
    run = a_run_copy("kernel", tmp_path / "run")
    done = CliRunner().invoke(app, ["release", str(run)])
    assert done.exit_code == 0, done.output
    release = tmp_path / "run-release"
    digest = checksum(release / MANIFEST)
    assert f"--digest {digest}" in done.output
    shutil.rmtree(run)
    plain = CliRunner().invoke(app, ["verify", str(release)])
    assert plain.exit_code == 0, plain.output
    assert "epsilon 10 at delta 1e-05 (one record replaced; observer: public)." in plain.output
    assert "VERIFIED" in plain.output
    assert "nothing else is inside" not in plain.output
    assert all(line in plain.output for line in UNSEEN)
    for unseen in ("low bits of weights", "made of exact sums", "which data it was"):
        assert unseen in plain.output
    assert f"{digest} (NOT compared" in plain.output
    head = json.loads((release / MANIFEST).read_text())["ledger_head"]
    for given, said in ((digest, "every byte"), (head, "not the weights")):
        compared = CliRunner().invoke(app, ["verify", str(release), "--digest", given])
        assert compared.exit_code == 0
        assert said in compared.output
    other = CliRunner().invoke(app, ["verify", str(release), "--digest", "0" * 64])
    assert other.exit_code == 1
    assert "NOT VERIFIED" in other.output
    with pytest.raises(RunError, match="64 hexadecimal"):
        CliRunner().invoke(app, ["verify", str(release), "--digest", "1"], catch_exceptions=False)
    with pytest.raises(RunError, match="gswgan release RUN"):
        CliRunner().invoke(app, ["verify", str(tmp_path)], catch_exceptions=False)


def test_a_failure_says_what_where_and_what_it_means(tmp_path: Path) -> None:
    folder = a_copy("kernel", tmp_path / "release")
    (folder / "records.npz").write_bytes(b"1")
    done = command_line("verify", folder).wait()
    assert done.returncode == 1
    assert "'records.npz' is no file of a release. It may hold anything" in done.stderr
    assert "Traceback" not in done.stderr
