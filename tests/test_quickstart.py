"""examples/quickstart.ipynb: it runs from top to bottom, in an empty folder, with fewer steps than by default."""

from __future__ import annotations

import base64
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
from PIL import Image

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"
EXECUTE = """
import nbformat, nbclient
notebook = nbformat.read("notebook.ipynb", as_version=4)
nbclient.NotebookClient(notebook, timeout=1500).execute()
nbformat.write(notebook, "executed.ipynb")
"""  # in a process of its own: warnings of the Jupyter libraries are not ours
EXTRAS = ("pyarrow", "datasets", "h5py", "pydicom", "flwr", "xgboost", "torchmetrics", "opacus")
"""What the package does without: the notebook needs none of it."""
MODEL = "GSWGAN(epsilon=10, delta=1e-5)"


def test_it_is_kept_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert all(cell.get("execution_count") is None and not cell.get("outputs") for cell in cells)


def test_it_runs_from_top_to_bottom(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(source.count(MODEL) for source in sources) == 1
    for cell in notebook.cells:
        cell.source = cell.source.replace(MODEL, "GSWGAN(epsilon=10, delta=1e-5, steps=60, device='cpu')")
    nbformat.write(notebook, tmp_path / "notebook.ipynb")
    ran = subprocess.run(
        [sys.executable, "-c", EXECUTE], cwd=tmp_path, capture_output=True, text=True, env=without_extras(tmp_path)
    )
    assert ran.returncode == 0, ran.stderr[-5000:]
    notebook = nbformat.read(tmp_path / "executed.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    texts = ["".join(text(output) for output in cell.outputs) for cell in cells]
    assert texts[0] == "1,437 images of 8x8 pixels; classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9\n"
    assert "guarantee: epsilon 10 at delta 1e-05 (one record replaced" in texts[1]
    assert texts[2].startswith("guarantee: epsilon 10 at delta 1e-05 (one record replaced; observer: public)")
    assert re.search(r"<progress .*step 60/60, .*10 of 10 spent", texts[2])  # the bar has come to its end
    assert "PRIVATE" in texts[4]
    assert re.search(r"digest: +[0-9a-f]{64}", texts[5])
    assert "The ledger is unbroken and has every planned release" in " ".join(texts[5].split())
    assert "epsilon 10 at delta 1e-05" in texts[6]
    shown = [picture for cell in cells for picture in pictures(cell)]
    assert [picture.size for picture in shown] == [(600, 600), (900, 600), (600, 600)]  # trained, columns=15, received
    assert all(np.asarray(picture).std() > 10 for picture in shown)
    assert np.array_equal(np.asarray(shown[0]), np.asarray(shown[2]))  # what was published is what was trained


def without_extras(folder: Path) -> dict[str, str]:
    """An environment in which nothing but the package and what it requires can be imported."""
    absent = folder / "absent"
    absent.mkdir()
    for name in EXTRAS:
        (absent / f"{name}.py").write_text(f"raise ImportError('{name} is not installed')\n")
    path = os.pathsep.join([str(absent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path}


def text(output: dict) -> str:
    data = output.get("data", {})
    return output.get("text", "") + data.get("text/html", data.get("text/plain", ""))


def pictures(cell: dict) -> list[Image.Image]:
    """Of a cell, also those inside HTML."""
    found = []
    for output in cell.outputs:
        data = output.get("data", {})
        codes = re.findall(r"data:image/png;base64,([^\"]+)", data.get("text/html", "")) or [data.get("image/png")]
        found += [Image.open(io.BytesIO(base64.b64decode(code))) for code in codes if code]
    return found
