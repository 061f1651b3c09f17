"""The example notebooks run from top to bottom, in an empty folder."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from helpers import ROOT, SHARED
from nbclient import NotebookClient

EXAMPLES = ROOT / "examples"
DATA = Path(os.environ.get("FEDKIN_DATA") or SHARED)


def outputs(name: str, folder: Path) -> str:
    """Everything that the notebook's cells print or show as text; a cell that raises fails the test."""
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    texts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            texts.append(output.get("text", "") + output.get("data", {}).get("text/plain", ""))
    return "\n".join(texts)


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "heart-disease").exists(), reason="the heart-disease files are not at hand")
def test_an_engineer_goes_from_a_table_to_a_model_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKIN_DATA", str(DATA))
    said = outputs("hospital_engineer.ipynb", tmp_path)
    assert "Column 'chol' is empty in all training rows of switzerland." in said
    assert "probability_yes" in said
    assert said.rstrip().endswith(("True", "np.True_")), "the exported model answers as fedkin does"


@pytest.mark.slow
def test_a_researcher_goes_from_an_idea_to_a_figure(tmp_path):
    said = outputs("researcher.ipynb", tmp_path)
    assert "nearest:Nearest:cloud" in said
    assert "best: {'settings.k': " in said
    assert (tmp_path / "runs" / "dirt" / "figures" / "levels.png").exists()


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("*.ipynb")))
def test_a_notebook_is_kept_with_its_outputs_and_names_no_machine(name):
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in cells[:2])
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    text = (EXAMPLES / name).read_text()
    assert "/home/" not in text
    assert "/tmp/" not in text
