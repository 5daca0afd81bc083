"""Execute the notebooks of this folder and store them with their output: `make notebooks`.

Names of files choose notebooks: `python docs/notebooks/execute.py live.ipynb`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def execute(path: Path) -> None:
    """Run all cells in order, in an empty folder; an error of a cell ends it."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder  # a ledger of its own
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=900, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of this machine
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if not _is_noise(one)]
    notebook.metadata.pop("language_info", None)
    nbformat.write(notebook, path)


def _is_noise(output: dict) -> bool:
    """What is left of a progress bar, and warnings with paths of this machine."""
    empty = output.output_type == "display_data" and output["data"].get("text/html") == ""
    return empty or output.get("name") == "stderr"


if __name__ == "__main__":
    wanted = [HERE / name for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb"))
    for path in wanted:
        print(path.name, flush=True)
        execute(path)
