from __future__ import annotations

from pathlib import Path

import pytest

from gswgan.errors import RunError
from gswgan.evaluation.result import Results


def test_results_of_another_basis_are_moved_aside_and_back(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    for size, value in ((100, 0.1), (200, 0.2)):
        results = Results(path, {"train_size": size})
        assert results.values == {}
        results.ask(["fid"], [1])
        results.put({"fid": value}, 1)
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert Results(path, {"train_size": 100}).summary()["fid"]["mean"] == 0.1
    assert Results(path, {"train_size": 200}).summary()["fid"]["mean"] == 0.2
    path.write_text("{}")
    with pytest.raises(RunError, match="Move it away"):
        Results(path, {})
