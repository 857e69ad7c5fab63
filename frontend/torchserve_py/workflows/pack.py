"""Making a workflow's archive: `.war`, a ZIP of its specification, its handler file and what else it needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from torchserve_py.archive.artifacts import Artifacts
from torchserve_py.archive.errors import PackError
from torchserve_py.archive.pack import check_target, make_export_folder, write_zip
from torchserve_py.workflows.errors import WorkflowError
from torchserve_py.workflows.manifest import MANIFEST_PATH, WorkflowManifest
from torchserve_py.workflows.spec import read_spec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*")


@dataclass(frozen=True, slots=True)
class PackOptions:
    """What `torch-workflow-archiver` is told. Paths are relative to the working directory; None means not given.

    handler      the Python file with the workflow's functions; not needed where every node is a model
    extra_files  comma-separated files, wildcards and folders
    """

    workflow_name: str
    spec_file: str
    handler: str | None = None
    extra_files: str | None = None
    export_path: str = "."
    force: bool = False


def pack(options: PackOptions) -> Path:
    """Write the archive and return its path.

    Raises PackError (also for a specification that no server would take), FileNotFoundError and OSError; then a new
    archive is not left behind half written, and one that was there before is as it was.
    """
    if not _NAME.fullmatch(options.workflow_name):
        raise PackError(
            "Workflow name contains special characters.\n"
            "The allowed regular expression filter for workflow name is: ^[A-Za-z0-9][A-Za-z0-9_\\-.]*$"
        )
    target = Path(options.export_path) / f"{options.workflow_name}.war"
    artifacts = Artifacts(leave_out=target)
    for path in (options.spec_file, options.handler):
        if path:
            artifacts.add_file(Path(path))
    _check_spec(options)
    if options.extra_files:
        artifacts.add_extra_files(options.extra_files)
    check_target(target, force=options.force)
    make_export_folder(target.parent)
    handler = Path(options.handler).name if options.handler else None
    manifest = WorkflowManifest(options.workflow_name, Path(options.spec_file).name, handler)
    write_zip(target, artifacts.sorted_files(), MANIFEST_PATH, manifest.to_json(datetime.now()))
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
