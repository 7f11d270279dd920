"""The student's story: the example notebook, run as a person runs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "own_method.ipynb"


@pytest.mark.slow
def test_the_example_notebook_runs_and_shows_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")  # of other packages that are or are not installed
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    notebook = nbformat.read(EXAMPLE, 4)
    kept = [_shown(cell) for cell in notebook.cells]
    client.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [_shown(cell) for cell in notebook.cells]
    words = "\n".join(text for each in shown for text in each)
    assert [len(each) for each in shown] == [len(each) for each in kept], words  # progress is one text, rewritten
    assert "penalty  round 4/4  accuracy" in words and "Run(penalty, seed 0: " in words
    assert "36 of 36 rounds of 9 runs" in words and "Comparison(fedavg " in words and "torch.Size([8, 10])" in words
    pages = [output["data"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert sum("text/html" in page for page in pages) == 3 and sum("image/png" in page for page in pages) == 1


def test_what_the_example_notebook_shows_is_of_this_version() -> None:
    """Its outputs are real, and say nothing of the machine they were made on."""
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(EXAMPLE, 4)
    nbformat.validate(notebook)
    assert all(cell["execution_count"] for cell in notebook.cells if cell["cell_type"] == "code")
    words = "\n".join(text for cell in notebook.cells for text in _shown(cell))
    assert "Comparison(fedavg " in words and "Traceback" not in words and "Warning" not in words
    assert "/home/" not in words and "/work" not in words and "/tmp" not in words


def _shown(cell: dict[str, object]) -> list[str]:
    """What a cell shows as text."""
    outputs = cell.get("outputs", [])
    assert isinstance(outputs, list)
    return [str(output.get("text") or output.get("data", {}).get("text/plain", "")) for output in outputs]
