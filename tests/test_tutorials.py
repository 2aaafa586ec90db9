"""The notebooks of `docs/tutorials` run with small numbers, and their stored outputs hold nothing private."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.tf_only

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs/tutorials").glob("*.ipynb"))
# Source of the cell with the tag "parameters" in tests.
SMALL = {
    "answers": "EPOCHS = 1",
    "entities": "SENTENCES, EPOCHS = 8, 1",
    "pretrain": "TOKENS = 1_500",
    "reviews": "EXAMPLES, EPOCHS = 16, 1",
    "scale": "ROWS = 240",
    "tf1": "EPOCHS = 1",
}
QUICK = {"answers"}  # the other notebooks export models or start processes
# Tracing would take most of the time of the quick notebooks.
EAGER = "import lmzoo\nimport tensorflow\ntensorflow.config.run_functions_eagerly(True)\n"


def cells_of_type(notebook: nbformat.NotebookNode, cell_type: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == cell_type]


@pytest.mark.slow_cases("answers")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem not in QUICK)) for path in NOTEBOOKS],
)
def test_the_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, 4)
    (parameters,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    names = set(re.findall(r"^(\w+) = ", parameters.source, re.MULTILINE))
    parameters.source = SMALL[path.stem]
    assert names == set(re.findall(r"[A-Z]{2,}", parameters.source))
    parameters.source = EAGER * (path.stem in QUICK) + parameters.source
    (tmp_path / "docs/tutorials").mkdir(parents=True)
    (tmp_path / "examples").symlink_to(ROOT / "examples", target_is_directory=True)
    folder = {"metadata": {"path": str(tmp_path / "docs/tutorials")}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=folder).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_of_one_run_and_hold_nothing_private(path: Path) -> None:
    """One run from top to bottom, without paths, dates or warnings of the machine that it ran on."""
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    code = cells_of_type(notebook, "code")
    assert [cell.execution_count for cell in code] == list(range(1, 1 + len(code)))
    outputs = [output for cell in code for output in cell.outputs]
    assert {(output.output_type, output.get("name")) for output in outputs} == {("stream", "stdout")}
    printed = "".join(output.text for output in outputs)
    assert re.search(r"(^|[\s'\"])/\w+/|\d{4}-\d\d-\d\d|WARNING|I0000", printed) is None
    assert path.stat().st_size < 30_000
    assert cells_of_type(notebook, "markdown")[0].source.startswith("# ")
    assert notebook.metadata.language_info == {"name": "python"}


def test_every_notebook_is_in_the_table() -> None:
    table = (ROOT / "docs/tutorials/index.md").read_text("utf-8")
    assert {path.stem for path in NOTEBOOKS} == set(re.findall(r"\((\w+)\.md\)", table)) == {*SMALL}
