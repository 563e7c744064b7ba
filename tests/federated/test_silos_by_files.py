"""Silos by files, with the commands: sites that differ, inspect, status, `verify --site`, and training again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rounds import answer_all, flower, simulate
from silo_rounds import clients_of, parts_of, plan_for
from typer.testing import CliRunner

from gswgan.cli.main import app
from gswgan.critics.kernel.embedding import Embedding
from gswgan.data import load_data
from gswgan.errors import FederationError, PlanError
from gswgan.federated.memory import home_of
from gswgan.federated.messages import answer_bytes
from gswgan.federated.server import Round, create_run
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.mechanism import GRID_BITS
from gswgan.run.folder import RunFolder, write_json
from gswgan.run.retrain import retrain

NAMES = ("north", "south", "west")
HAS = {"north": range(10), "south": range(4), "west": range(3, 10)}
"""The classes of each site: class 3 is at all, 0 to 2 at two, 4 to 9 at two."""


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def ask(*arguments: object, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return dict(json.loads(result.stdout))


def make_sites(root: Path) -> dict[str, int]:
    """Folders of images by class name; the south has pictures of another size. Returns how many records each has."""
    data, sizes = load_data("digits"), {}
    for number, name in enumerate(NAMES):
        mine = [i for i in range(number, data.n, 3) if data.labels[i] in HAS[name]]
        for i in mine:
            place = root / name / "images" / f"digit {data.labels[i]}"
            place.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(data.images[i, 0])
            (picture.resize((24, 16)) if name == "south" else picture).save(place / f"{i:04}.png")
        sizes[name] = len(mine)
    return sizes


def make_plan(root: Path, sizes: dict[str, int], *options: object) -> Path:
    (root / "sites.csv").write_text("\n".join(f"{name}, {size}" for name, size in sizes.items()))
    (root / "classes.txt").write_text("\n".join(f"digit {label}" for label in range(10)))
    call("federate", "plan", "--protect", "record", "--clients", root / "sites.csv", "--class-names",
         root / "classes.txt", "--image-size", 8, "--epsilon", 20, "--delta", 1e-5, "--steps", 5, "--out",
         root / "RUN", *options)  # fmt: skip
    return root / "RUN/plan.json"


def site(root: Path, name: str, **more: object) -> Path:
    table = {"client": name, "data": str(root / name / "images"), "state": str(root / name / "state"),
             "protect": "record", "trust": "untrusted-server", "epsilon": 20.0, "delta": 1e-5, "image-size": 8,
             **more}  # fmt: skip
    path = root / name / "site.toml"
    path.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items()))
    return path


def test_a_round_of_sites_that_differ(tmp_path: Path):
    plan = make_plan(tmp_path, make_sites(tmp_path))
    (tmp_path / "answers").mkdir()
    for name in NAMES:
        before = ask("federate", "inspect", plan, "--site", site(tmp_path, name))
        assert before["guarantee"]["unit"] == "record"
        assert not (tmp_path / name / "state").exists()  # looking records nothing
        out = tmp_path / "answers" / f"{name}.safetensors"
        call("federate", "answer", plan, "--site", site(tmp_path, name), "--out", out)
        after = ask("federate", "inspect", plan, "--site", site(tmp_path, name))
        assert (before["refused"], after["refused"]) == (None, None)
        assert "the same bytes" in after["who_learns_what"][-1]
        assert before["bytes"] <= out.stat().st_size < before["bytes"] + 1000  # what was said to leave
        assert answer_bytes(RunFolder(tmp_path / "RUN").plan()) == before["bytes"]
    assert {one["answers"] for one in ask("federate", "status", tmp_path / "RUN")["answers"]} == {0}
    call("federate", "combine", tmp_path / "RUN", tmp_path / "answers", "--device", "cpu")
    seen = ask("federate", "status", tmp_path / "RUN")
    assert seen["released"] is True
    assert [(one["client"], one["answers"], one["bytes"]) for one in seen["answers"]] == [
        (name, 1, before["bytes"]) for name in NAMES
    ]
    call("release", tmp_path / "RUN", "--out", tmp_path / "bundle")
    for name in NAMES:
        found = ask("verify", tmp_path / "bundle", "--site", tmp_path / name / "state")
        assert (found["verified"], found["site"]["disagreements"], found["site"]["answers"]) == (True, [], 1)
        assert found["site"]["epsilon"] <= 20.001
        assert ask("federate", "status", tmp_path / name / "state")["clients"][0]["protect"] == "record"
        (ledger,) = home_of(tmp_path / name / "state", name).glob("*/ledger.jsonl")
        assert len(read_ledger(ledger)[1]) == 1
    again = retrain(tmp_path / "bundle", tmp_path / "again", steps=4, device="cpu", seed=1).plan()
    first = RunFolder(tmp_path / "RUN").plan()
    assert (again.training.memory, again.training.smoothing) == (first.training.memory, first.training.smoothing)


def test_verify_finds_a_ledger_that_says_something_else(tmp_path: Path):
    sizes = make_sites(tmp_path)
    plan = make_plan(tmp_path, sizes, "--min-sites", 2)
    (tmp_path / "answers").mkdir()
    for name in NAMES:
        out = tmp_path / "answers" / f"{name}.safetensors"
        call("federate", "answer", plan, "--site", site(tmp_path, name), "--out", out)
    (tmp_path / "answers/west.safetensors").write_bytes(b"garbage")
    with pytest.raises(FederationError, match="west"):
        call("federate", "combine", tmp_path / "RUN", tmp_path / "answers", "--device", "cpu")
    shown = call("federate", "combine", tmp_path / "RUN", tmp_path / "answers", "--close", "--device", "cpu")
    assert "west.safetensors" in shown
    assert "not in it: west; the plan needs 2" in shown
    call("release", tmp_path / "RUN", "--out", tmp_path / "bundle")
    (said,) = ask("verify", tmp_path / "bundle", "--site", tmp_path / "west/state", code=1)["site"]["disagreements"]
    assert "does not count west" in said
    (west,) = (tmp_path / "west/state").glob("*/*/ledger.jsonl")
    west.write_bytes(west.read_bytes().splitlines(keepends=True)[0])  # nothing recorded, nothing counted: they agree
    assert not ask("verify", tmp_path / "bundle", "--site", west)["site"]["disagreements"]
    shutil.rmtree(west.parent)  # as a site that has never answered
    assert ask("verify", tmp_path / "bundle", "--site", tmp_path / "west/state")["site"]["answers"] == 0
    (north,) = (tmp_path / "north/state").glob("*/*/ledger.jsonl")
    empty = north.read_bytes().splitlines(keepends=True)[0]
    kept = north.read_bytes()
    north.write_bytes(empty)  # as if it had recorded nothing
    (said,) = ask("verify", tmp_path / "bundle", "--site", north, code=1)["site"]["disagreements"]
    assert "has recorded none" in said
    north.write_bytes(kept + b'{"attempt": 0, "ev')  # it died while it wrote another line: who looks does not write
    shown = call("verify", tmp_path / "bundle", "--site", tmp_path / "north/state")
    assert "the last line" in shown
    assert ask("verify", tmp_path / "bundle", "--site", north)["site"]["torn"] is True
    ask("federate", "status", tmp_path / "north/state")
    ask("federate", "inspect", plan, "--site", site(tmp_path, "north"))
    assert north.read_bytes() == kept + b'{"attempt": 0, "ev'
    next(north.parent.glob("answer.bin")).unlink()  # it lost what it sent and is asked again: another answer
    call("federate", "answer", plan, "--site", site(tmp_path, "north", epsilon=100.0), "--out", tmp_path / "second")
    (said,) = ask("verify", tmp_path / "bundle", "--site", north, code=1)["site"]["disagreements"]
    assert "2 answers" in said


def test_a_site_that_the_list_has_wrong_refuses_alone(tmp_path: Path):
    sizes = make_sites(tmp_path)
    plan = make_plan(tmp_path, {**sizes, "south": sizes["south"] + 1})
    with pytest.raises(FederationError, match=f"{sizes['south'] + 1} records"):
        call("federate", "answer", plan, "--site", site(tmp_path, "south"), "--out", tmp_path / "south.safetensors")
    assert not list((tmp_path / "south/state").glob("*/*/ledger.jsonl"))
    with pytest.raises(FederationError, match="the cap"):
        call("federate", "answer", plan, "--site", site(tmp_path, "north", epsilon=19.0), "--out", tmp_path / "n")
    config = site(tmp_path, "north", trust="trusted-aggregator")
    with pytest.raises(FederationError, match="trust"):
        call("federate", "answer", plan, "--site", config, "--out", tmp_path / "n")
    call("federate", "answer", plan, "--site", site(tmp_path, "west"), "--out", tmp_path / "west.safetensors")


def test_persons_are_grouped_at_the_site_and_their_ids_do_not_leave(tmp_path: Path):
    sizes = make_sites(tmp_path)
    persons = {}
    for name in NAMES:
        files = sorted((tmp_path / name / "images").glob("*/*.png"))
        rows = [
            f"{path.relative_to(tmp_path / name / 'images')},patient-{name}-{i // 2}" for i, path in enumerate(files)
        ]
        (tmp_path / name / "patients.csv").write_text("\n".join(["file,person", *rows]))
        persons[name] = -(-len(files) // 2)
    (tmp_path / "people.csv").write_text("\n".join(f"{name},{sizes[name]},{persons[name]}" for name in NAMES))
    (tmp_path / "classes.txt").write_text("\n".join(f"digit {label}" for label in range(10)))
    call("federate", "plan", "--protect", "person", "--clients", tmp_path / "people.csv", "--class-names",
         tmp_path / "classes.txt", "--image-size", 8, "--epsilon", 200, "--delta", 1e-5, "--steps", 5, "--out",
         tmp_path / "RUN")  # fmt: skip
    plan, more = tmp_path / "RUN/plan.json", {"protect": "person", "epsilon": 200.0}
    (tmp_path / "answers").mkdir()
    for name in NAMES:
        config = site(tmp_path, name, **more, **{"group-by": str(tmp_path / name / "patients.csv")})
        call("federate", "answer", plan, "--site", config, "--out", tmp_path / "answers" / f"{name}.safetensors")
        sent = (tmp_path / "answers" / f"{name}.safetensors").read_bytes()
        assert b"patient" not in sent + plan.read_bytes()
        assert b".png" not in sent
    shown = call("federate", "combine", tmp_path / "RUN", tmp_path / "answers", "--device", "cpu")
    assert "one person replaced; observer: server" in shown
    assert np.isfinite(json.loads((tmp_path / "RUN/release/privacy.json").read_text())["epsilon"])


def test_a_round_over_flower_that_lacks_sites_at_its_deadline_can_be_held_again(tmp_path: Path):
    pytest.importorskip("flwr")
    from gswgan.federated.flower import hold

    parts = parts_of("record")
    plan = plan_for(parts, "record")
    held_round = Round(create_run(tmp_path / "RUN", plan, tuple(parts), 600))
    those = clients_of(tmp_path / "state", parts, plan, "record")
    late = those.pop("site-00001")
    answer_all(held_round, those)
    opened = held_round.folder.private / "opened.json"
    write_json(opened, {"at": 1.0})
    nobody = SimpleNamespace(get_nodes=list, push_messages=lambda sent: [], pull_messages=lambda names: [])
    with pytest.raises(FederationError, match=r"2 of 3 sites; none of site-00001.*at least 3"):
        hold(nobody, held_round, note=print, progress=lambda done: None)  # type: ignore[arg-type]
    assert not held_round.folder.ledger.exists()
    assert not opened.exists()  # the same command opens it again
    assert held_round.take(late.reply(held_round.question()), node=7) is None
    hold(nobody, held_round, note=print, progress=lambda done: None)  # type: ignore[arg-type]
    held_round.release()
    assert json.loads(held_round.folder.federation.read_text())["sites"]["missing"] == []


def test_made_up_sites_get_records_by_their_place_unless_asked_by_class():
    def facts(*more: str) -> dict[str, Any]:
        words = ["federate", "simulate", "--data", "digits", "--clients", "3", "--protect", "record", "--device", "cpu"]
        said = CliRunner().invoke(app, [*words, "--dry-run", "--json", *more], catch_exceptions=False)
        return json.loads(said.stdout)["plan"]["facts"]

    found = facts()
    assert [site["records"] for site in found["silos"]["sites"]] == [479, 479, 479]  # whatever the labels are
    assert found["data"] == "digits"
    assert "by class" in facts("--concentration", "0.5")["data"]  # in the plan, the card and the report
    with pytest.raises(PlanError, match="from 2 to"):
        facts("--clients", "1000000")


@flower
@pytest.mark.slow
def test_the_round_on_flower_releases_the_sum_of_the_messages(tmp_path: Path):
    simulate(tmp_path, "--data", "digits", "--clients", "3", "--protect", "record", "--steps", "3", "--epsilon", "20",
             "--device", "cpu", "--out", str(tmp_path / "RUN"))  # fmt: skip
    folder = RunFolder(tmp_path / "RUN")
    plan = folder.plan()
    kept = sorted((folder.private / "clients").glob("*/*/answer.bin"))
    assert len(kept) == 3
    total = sum(np.frombuffer(path.read_bytes(), "<i8") for path in kept).reshape(10, -1) * 2.0**-GRID_BITS
    released = Embedding.load(folder.embedding)
    assert np.array_equal(released.sums.numpy(), total[:, :-1])
    assert np.array_equal(released.counts.numpy(), total[:, -1])
    rows = [json.loads(line) for line in (folder.private / "answers.jsonl").read_text().splitlines()]
    assert [row["up"] > answer_bytes(plan) for row in rows] == [True] * 3  # they came through Flower
