"""A workflow at rest: its archive (`.war`) found or downloaded, unpacked and read."""

import logging
import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from torchserve_py.apis.workflows.errors import InvalidDag, InvalidWorkflow, WorkflowNotFound
from torchserve_py.apis.workflows.manifest import read_manifest
from torchserve_py.apis.workflows.spec import WorkflowSpec, read_spec
from torchserve_py.archives.archiver.pack import stamped
from torchserve_py.base.settings.model_spec import is_url
from torchserve_py.core.archive import manifest as model_manifest
from torchserve_py.core.archive.downloads import DownloadPolicy
from torchserve_py.core.archive.errors import UnreadableArchive
from torchserve_py.core.archive.unpack import unpack

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkflowFiles:
    """An unpacked workflow."""

    name: str  # in the manifest
    spec: WorkflowSpec
    folder: Path  # private, with the files; it is also the folder of the models that run the functions
    handler: str | None  # the file with the functions; None: there are none
    downloaded: Path | None = None  # the file in the workflow store that was downloaded for this workflow

    def remove(self, *, downloaded: bool = False) -> None:
        """Delete the folder, and with `downloaded` the downloaded file as well."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if downloaded and self.downloaded:
            self.downloaded.unlink(missing_ok=True)


def obtain(url: str, *, workflow_store: Path | None, temp_dir: Path, policy: DownloadPolicy) -> WorkflowFiles:
    """Return the unpacked workflow from `url`: a file of the workflow store, or a URL that is allowed.

    Call this in a thread: a download may take long. No file stays behind after an error. Raises WorkflowError: the
    workflow was not found or cannot be used; ArchiveError: the download failed; Cancelled.
    """
    if workflow_store is None:
        raise WorkflowNotFound("Workflow store has not been configured.")
    if not workflow_store.is_dir():
        raise WorkflowNotFound("The workflow store does not exist: workflow_store must name a directory.")
    if ".." in url:
        raise WorkflowNotFound(f"Relative path is not allowed in url: {url}")
    if not is_url(url):
        return _open(_locate(url, workflow_store), temp_dir, url)
    from torchserve_py.core.archive.fetch import fetch  # its client of HTTP takes long to import

    archive = fetch(url, workflow_store, policy)
    try:
        return replace(_open(archive, temp_dir, url), downloaded=archive)
    except BaseException:
        archive.unlink(missing_ok=True)
        raise


def _locate(url: str, store: Path) -> Path:
    path = store / url  # url itself, if that is absolute
    try:
        if url and path.is_relative_to(store) and path.is_file():
            return path
    except (OSError, ValueError) as error:  # the path is too long, or contains a NUL
        logger.debug("Looking for %r failed: %s", url, error)
    raise WorkflowNotFound(f"Workflow not found in workflow store: {url}")


def _open(archive: Path, temp_dir: Path, url: str) -> WorkflowFiles:
    try:
        folder = unpack(archive, temp_dir.resolve(), url=url)
    except UnreadableArchive as error:
        raise InvalidWorkflow(f"Failed to read workflow archive: {url}", error.detail) from error
    try:
        manifest = read_manifest(folder)
        spec = read_spec(folder / manifest.spec_file)
        handler = _handler(folder, manifest.handler, spec)
        _describe_functions(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return WorkflowFiles(manifest.name, spec, folder, handler)


def _handler(folder: Path, handler: str | None, spec: WorkflowSpec) -> str | None:
    if not spec.functions:
        return None
    functions = ", ".join(spec.functions)
    if handler is None:
        problem = f"{functions} must be in models, or functions of a handler file, but the workflow has no such file"
        raise InvalidDag("Not a valid DAG", problem)
    file = handler if handler.endswith(".py") else f"{handler}.py"
    if not (folder / file).is_file():
        raise InvalidWorkflow(f"Workflow handler not found: {file}", f"the archive must hold it, for {functions}")
    return file


def _describe_functions(folder: Path) -> None:
    """Write a model's manifest into the folder, so that the server does not guess from the other files there."""
    path = folder / model_manifest.MANIFEST_PATH
    path.parent.mkdir(exist_ok=True)
    manifest = stamped(model_manifest.describe(model_name="functions"), datetime.now(UTC))
    path.write_text(manifest.to_json(), encoding="utf-8")
