"""Runs a notebook in a kernel of its own and stores it with its outputs: `run_notebook.py NOTEBOOK SOCKETS`.

A process of its own, for what Jupyter leaves open until it ends. The kernel works in the notebook's folder; its
sockets are files whose names begin with SOCKETS: no port, and nobody else who could listen.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

CELL_SECONDS = 300


def main(path: Path, sockets: str) -> int:
    notebook = nbformat.read(path, as_version=4)
    manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=sockets)
    resources = {"metadata": {"path": str(path.parent)}}
    try:
        NotebookClient(notebook, km=manager, timeout=CELL_SECONDS, resources=resources).execute()
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        return 1
    nbformat.write(notebook, path)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
