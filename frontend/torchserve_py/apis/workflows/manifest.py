"""`WAR-INF/MANIFEST.json`: what a workflow's archive says about it. The format is TorchServe's."""

import json
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import BeforeValidator, Field

from torchserve_py.apis.workflows.errors import InvalidWorkflow
from torchserve_py.base.settings.schemas.schema import Schema, key, read
from torchserve_py.base.settings.schemas.values import TEXT, Expected, Nested, is_inside, json_object
from torchserve_py.core.archive.manifest import MAX_MANIFEST_BYTES
from torchserve_py.version import __version__
from ts.protocol.regular_files import read_regular_text

MANIFEST_PATH = PurePosixPath("WAR-INF", "MANIFEST.json")
_FILE = Expected("the path of a file in the archive", is_inside)


class WorkflowManifest(Schema):
    """The name of a workflow, and the paths of its files in the archive; without functions it needs no handler."""

    name: Annotated[str, TEXT] = Field(validation_alias="workflowName", description="the name")
    spec_file: Annotated[str, _FILE] = Field(validation_alias="specFile", description="the specification")
    handler: Annotated[str | None, _FILE, BeforeValidator(lambda value: value or None)] = key(
        None, "the Python file with the functions"
    )

    def to_json(self, when: datetime) -> str:
        """Return the text of the file for an archive that is made at `when`."""
        workflow = {"workflowName": self.name, "specFile": self.spec_file}
        if self.handler is not None:
            workflow["handler"] = self.handler
        created = when.strftime("%d/%m/%Y %H:%M:%S")
        manifest = {"createdOn": created, "workflow": workflow, "archiverVersion": __version__}
        return json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"


class _File(Schema):
    workflow: Annotated[WorkflowManifest | None, Nested("an object with workflowName and specFile")] = None


def read_manifest(folder: Path) -> WorkflowManifest:
    """Read the manifest of the archive that was unpacked into `folder`. Raises InvalidWorkflow."""
    try:
        values, problems = read(_File, json_object(read_regular_text(folder / MANIFEST_PATH, MAX_MANIFEST_BYTES)))
    except FileNotFoundError as error:
        raise _invalid("there is none; was the archive made by torch-workflow-archiver?") from error
    except (OSError, ValueError) as error:
        raise _invalid(str(error)) from error
    if problems or values.workflow is None:
        raise _invalid("; ".join(problems.values()) or "workflow is missing, it must be an object")
    return values.workflow


def _invalid(problem: str) -> InvalidWorkflow:
    return InvalidWorkflow(f"Invalid workflow manifest {MANIFEST_PATH}", problem)
