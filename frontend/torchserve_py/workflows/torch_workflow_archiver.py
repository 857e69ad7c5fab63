"""The command `torch-workflow-archiver`: the flags of TorchServe's, and their meaning."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torchserve_py.archive.torch_model_archiver import run
from torchserve_py.workflows.pack import PackOptions, pack


def parse_options(arguments: Sequence[str] | None = None) -> PackOptions:
    """Read the command line, `sys.argv` when None. Bad usage prints what is wrong and exits with status 2."""
    parser = argparse.ArgumentParser(
        prog="torch-workflow-archiver",
        description="Pack the specification of a workflow and its functions into an archive that the server loads.",
    )
    parser.add_argument(
        "--workflow-name", required=True, help="name of the workflow, and of the archive: <workflow-name>.war"
    )
    parser.add_argument("--spec-file", required=True, help="YAML file with the workflow's models and graph")
    parser.add_argument("--handler", help="Python file with the functions that are nodes of the graph")
    parser.add_argument(
        "--extra-files",
        help="comma-separated files, wildcards and folders; the contents of a folder go to the archive's root",
    )
    parser.add_argument(
        "--export-path",
        default=".",
        help="where the archive is written (default: the current folder); made if missing",
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite an archive that exists")
    return PackOptions(**vars(parser.parse_args(arguments)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack what the command line asks for. Returns the exit status: 0, or 1 after printing what was wrong."""
    options = parse_options(arguments)
    return run(lambda: pack(options), f"workflow {options.workflow_name}")


if __name__ == "__main__":
    sys.exit(main())
