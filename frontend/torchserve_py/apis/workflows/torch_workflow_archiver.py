"""The command `torch-workflow-archiver`, with the flags of TorchServe's: makes a workflow's archive.

The archive (`.war`) is a ZIP of the specification, the handler file and what else the functions need.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from torchserve_py import shell_completion
from torchserve_py.apis.workflows.errors import WorkflowError
from torchserve_py.apis.workflows.manifest import MANIFEST_PATH, WorkflowManifest
from torchserve_py.apis.workflows.spec import read_spec
from torchserve_py.archives.archiver.artifacts import Artifacts
from torchserve_py.archives.archiver.errors import PackError
from torchserve_py.archives.archiver.pack import check_name, make_room, write_archive
from torchserve_py.archives.archiver.torch_model_archiver import run


@dataclass(frozen=True, slots=True)
class PackOptions:
    """The command line. Paths are relative to the working directory; None means not given."""

    workflow_name: str
    spec_file: str
    handler: str | None = None  # the file with the workflow's functions; not needed where every node is a model
    extra_files: str | None = None  # comma-separated files, wildcards and folders
    export_path: str = "."
    force: bool = False


def pack(options: PackOptions) -> Path:
    """Write the archive and return its path.

    After an error there is no half-written archive, and an earlier archive is unchanged. Raises PackError: an option or
    the specification is wrong, or the archive exists; OSError: a file cannot be read or written.
    """
    check_name(options.workflow_name, "workflow")
    target = Path(options.export_path) / f"{options.workflow_name}.war"
    artifacts = Artifacts(leave_out=target)
    artifacts.add_files(options.spec_file, options.handler)
    _check_spec(options)
    if options.extra_files:
        artifacts.add_extra_files(options.extra_files)
    make_room(target, force=options.force)
    handler = Path(options.handler).name if options.handler else None
    manifest = WorkflowManifest(name=options.workflow_name, spec_file=Path(options.spec_file).name, handler=handler)
    write_archive(target, artifacts, MANIFEST_PATH, manifest.to_json(datetime.now()))
    return target


def _check_spec(options: PackOptions) -> None:
    try:
        functions = read_spec(Path(options.spec_file)).functions
    except WorkflowError as error:
        raise PackError(str(error)) from error
    if functions and not options.handler:
        raise PackError(
            f"{', '.join(functions)} in dag is not one of the models, so --handler must name the Python file with a"
            " function of that name."
        )


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
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
    return parser


def parse_options(arguments: Sequence[str] | None = None) -> PackOptions:
    """Read the command line, by default that of this process; print what is wrong and exit with status 2."""
    parser = command_parser()
    shell_completion.offer(parser)
    return PackOptions(**vars(parser.parse_args(arguments)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack an archive and return the exit status: 0, or 1 after printing what was wrong."""
    options = parse_options(arguments)
    return run(lambda: pack(options), f"workflow {options.workflow_name}")


if __name__ == "__main__":
    sys.exit(main())
