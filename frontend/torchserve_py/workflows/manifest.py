"""`WAR-INF/MANIFEST.json`: what a workflow's archive says about it. The format is TorchServe's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from torchserve_py.archive.manifest import MAX_MANIFEST_BYTES
from torchserve_py.version import __version__
from torchserve_py.workflows.errors import InvalidWorkflow

MANIFEST_PATH = PurePosixPath("WAR-INF", "MANIFEST.json")


@dataclass(frozen=True, slots=True)
class WorkflowManifest:
    """The name of a workflow, and the paths of its files in the archive; without functions it needs no handler."""

    name: str
    spec_file: str
    handler: str | None

    def to_json(self, when: datetime) -> str:
        """The text of the file for an archive that is made at `when`."""
        workflow = {"workflowName": self.name, "specFile": self.spec_file}
        if self.handler is not None:
            workflow["handler"] = self.handler
        created = when.strftime("%d/%m/%Y %H:%M:%S")
        manifest = {"createdOn": created, "workflow": workflow, "archiverVersion": __version__}
        return json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"


def read(folder: Path) -> WorkflowManifest:
    """Read the manifest of the archive that was unpacked into `folder`. Raises InvalidWorkflow."""
    try:
        with (folder / MANIFEST_PATH).open("rb") as file:
            text = file.read(MAX_MANIFEST_BYTES + 1)
        if len(text) > MAX_MANIFEST_BYTES:
            raise _invalid(f"it is larger than {MAX_MANIFEST_BYTES} bytes")
        raw = json.loads(text)
    except FileNotFoundError as error:
        raise _invalid("there is none; was the archive made by torch-workflow-archiver?") from error
    except (OSError, ValueError, RecursionError) as error:
        raise _invalid(f"it is not JSON: {error}") from error
    workflow = raw.get("workflow") if isinstance(raw, dict) else None
    if not isinstance(workflow, dict):
        raise _invalid('it must be a JSON object with the object "workflow"')
    return WorkflowManifest(
        _text(workflow, "workflowName"),
        _path(workflow, "specFile"),
        None if workflow.get("handler") in (None, "") else _path(workflow, "handler"),
    )


def _path(workflow: dict[str, Any], key: str) -> str:
    text = _text(workflow, key)
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\0" in text:
        raise _invalid(f'"{key}" is {text!r}, it must be the path of a file in the archive')
    return text


def _text(workflow: dict[str, Any], key: str) -> str:
    value = workflow.get(key)
    if not isinstance(value, str) or not value:
        raise _invalid(f'"{key}" must be text, it is {json.dumps(value)}')
    return value


def _invalid(problem: str) -> InvalidWorkflow:
    return InvalidWorkflow(f"Invalid workflow manifest {MANIFEST_PATH}", problem)
