"""The notebooks run from a lake of their own, show what they say, and are stored without output."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest

pytest.importorskip("pyspark", "4.0")

ROOT = Path(__file__).parents[1]
RUNNER = Path(__file__).with_name("run_notebook.py")
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# What each shows, in this order among other things; and how many plots.
SHOWN = {
    "01-quickstart": (0, ["{'name': 'Alice', 'age': 31}", "['Alice', 'Dora', 'Bob']", "|  Bob| 41|Lima|[vip]|"]),
    "02-upserts-and-history": (4, ["lake_spark.errors.ConflictError: catalog 'product-2' is at "]),
    "03-operations": (3, ["[2] StoragePut: ", "('roof', 'cellar')", "history of catalog 'sensor' was cleared up to "]),
}


def name_of(path: Path) -> str:
    return path.stem


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_a_notebook_runs_and_shows_what_it_says(path: Path, spark_environment: dict[str, str], tmp_path: Path) -> None:
    copy = Path(shutil.copy(path, tmp_path))
    # Short, for the kernel's sockets are in it; and empty, as the home of somebody new.
    with tempfile.TemporaryDirectory(prefix="lake-nb-") as home:
        unknown = ("IPYTHON", "JUPYTER", "MPL", "XDG_")
        environment = {name: value for name, value in spark_environment.items() if not name.startswith(unknown)}
        # The library is found as it is in this process.
        environment |= {"HOME": home, "JUPYTER_PLATFORM_DIRS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(RUNNER), str(copy), str(Path(home) / "kernel")]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540, check=False)
    # A cell that fails is an error, one whose own assertions do not hold among them.
    assert ran.returncode == 0, ran.stderr
    notebook = nbformat.read(copy, as_version=4)

    found = outputs(notebook)
    assert [output.name for output in found if output.output_type == "stream" and output.name == "stderr"] == []
    plots, texts = SHOWN[path.stem]
    assert sum("image/png" in output.get("data", {}) for output in found) == plots
    shown = "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in found)
    assert [text for text in texts if text not in shown] == []
    assert [each.name for each in tmp_path.iterdir()] == [copy.name], "a notebook leaves nothing beside itself"


def test_every_notebook_is_known_here() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(SHOWN)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_a_notebook_is_stored_without_output_and_without_a_machine(path: Path) -> None:
    text = path.read_text()
    notebook = json.loads(text)
    nbformat.validate(nbformat.from_dict(notebook))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["id"] for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []
    # Any Python will do, not the one that somebody had.
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert not re.search(r"(?<![\w.])/(?:root|home|Users|tmp|work|var)/", text)
    assert sys.prefix not in text


@pytest.mark.parametrize("path", [*NOTEBOOKS, FOLDER / "README.md"], ids=name_of)
def test_links_of_notebooks_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        assert (path.parent / link).exists(), link
