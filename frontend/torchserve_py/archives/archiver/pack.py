"""Making a model archive: `.mar` (ZIP, deflated or stored), `.tar.gz` or a folder.

Large files are streamed from where they are, and the archive takes its name only when it is complete.
"""

import io
import logging
import re
import shutil
import tarfile
import tempfile
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Literal

from torchserve_py.archives.archiver.artifacts import Artifacts
from torchserve_py.archives.archiver.errors import PackError
from torchserve_py.archives.archiver.handler_file import packed_handler
from torchserve_py.core.archive.contracts import contract_of, known_contracts
from torchserve_py.core.archive.manifest import MANIFEST_PATH, RUNTIMES, Manifest, checked, describe
from torchserve_py.core.archive.progress_bar import Progress, progress_bar
from torchserve_py.version import __version__

log = logging.getLogger(__name__)

ArchiveFormat = Literal["default", "tgz", "no-archive", "zip-store"]
# What TorchServe's archiver adds to the model's name.
SUFFIXES: dict[ArchiveFormat, str] = {"tgz": ".tar.gz", "no-archive": "", "zip-store": ".mar", "default": ".mar"}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*")
_CHUNK_BYTES = 1 << 20
_GZIP_LEVEL = 6  # tarfile's own default, 9, takes twice the time for weights and saves nothing
#: Path in the archive and file on disk.
Files = Sequence[tuple[PurePosixPath, Path]]


@dataclass
class PackOptions:
    """The options of `torch-model-archiver`. Paths are relative to the working directory; None means not given.

    handler      a built-in name, or a Python file with or without `.py`, and `:function` behind it where one is meant;
                 None where the extra files are a Truss or an MLServer model, which have none
    extra_files  comma-separated files, wildcards and folders
    """

    model_name: str
    handler: str | None
    version: str
    serialized_file: str | None = None
    model_file: str | None = None
    extra_files: str | None = None
    runtime: str = RUNTIMES[0]
    export_path: str = "."
    archive_format: ArchiveFormat = "default"
    force: bool = False
    requirements_file: str | None = None
    config_file: str | None = None


def pack(options: PackOptions) -> Path:
    """Write the archive and return its path.

    Raises PackError, FileNotFoundError for a file that is not there, and OSError; then a new archive is not left behind
    half written, and one that was there before is as it was.
    """
    check_name(options.model_name, "model")
    if options.archive_format not in SUFFIXES:
        raise PackError(f'Archive format "{options.archive_format}" must be one of {", ".join(SUFFIXES)}.')
    target = Path(options.export_path) / (options.model_name + SUFFIXES[options.archive_format])
    artifacts = Artifacts(leave_out=target)
    manifest = _collect(options, artifacts)
    make_room(target, force=options.force)
    write_archive(target, artifacts, MANIFEST_PATH, manifest.to_json(), options.archive_format)
    return target


def _collect(options: PackOptions, artifacts: Artifacts) -> Manifest:
    """Find the files and make the manifest, which knows them by their names in the archive."""
    if options.runtime not in RUNTIMES:
        raise PackError(f'Runtime "{options.runtime}" must be one of {", ".join(RUNTIMES)}.')
    handler, handler_file = None, None
    if options.handler is not None:
        handler, handler_file = packed_handler(options.handler, options.runtime)
    artifacts.add_files(options.model_file, options.serialized_file, handler_file)
    if options.extra_files:
        artifacts.add_extra_files(options.extra_files)
    artifacts.add_files(options.requirements_file, options.config_file)
    if handler is None:
        _complete(artifacts)
    manifest = describe(
        runtime=options.runtime,
        model_name=options.model_name,
        serialized_file=_name(options.serialized_file),
        handler=handler,
        model_file=_name(options.model_file),
        model_version=options.version,
        requirements_file=_name(options.requirements_file),
        config_file=_name(options.config_file),
    )
    return stamped(manifest, datetime.now())


def _complete(artifacts: Artifacts) -> None:
    """Add what a model without a handler needs from elsewhere."""
    contract = known_contracts()[contract_of(artifacts.top_names)]
    if contract.handlers:
        raise PackError(
            "No handler is given. Name one with --handler, or give with --extra-files the folder of a Truss, with its"
            " config.yaml, or of an MLServer model, with its model-settings.json."
        )
    if contract.external_packages:
        artifacts.add_external_packages(contract.file)


def stamped(manifest: Manifest, when: datetime) -> Manifest:
    """`manifest` with the keys that tell when and by which version of the archiver it was packed."""
    created = when.strftime("%d/%m/%Y %H:%M:%S")
    return checked({"createdOn": created, **manifest.raw, "archiverVersion": __version__})


def _name(path: str | None) -> str | None:
    return Path(path).name if path else None


def check_name(name: str, what: str) -> None:
    """Check the name of a model or of a workflow, as `what` says. Raises PackError."""
    if not _NAME.fullmatch(name):
        raise PackError(
            f"{what.capitalize()} name contains special characters.\n"
            f"The allowed regular expression filter for {what} name is: ^{_NAME.pattern}$"
        )


def make_room(target: Path, *, force: bool) -> None:
    """Make the folder that an archive goes to.

    Raises PackError: there is an archive at `target` already, and it may not be overwritten; or the folder is something
    else; OSError.
    """
    if target.exists():
        if not force:
            raise PackError(
                f"{target} already exists.\n"
                "Please specify --force/-f option to overwrite the model archive output file.\n"
                "See -h/--help for more details."
            )
        log.warning("Overwriting %s ...", target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise PackError(
            f"Given export-path {target.parent} is not a directory. Point to a valid export-path directory."
        ) from error


def write_archive(
    target: Path, artifacts: Artifacts, manifest_path: PurePosixPath, manifest: str, archive_format: str = "default"
) -> None:
    """Write the files and the manifest. Raises OSError; then what was at `target` is as it was, but for a folder."""
    with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as folder:  # the one folder that can be written to
        manifest_file = Path(folder, manifest_path.name)
        manifest_file.write_text(manifest, encoding="utf-8")
        files = [*artifacts.sorted_files(), (manifest_path, manifest_file)]
        with progress_bar(sum(file.stat().st_size for _, file in files), target.name) as progress:
            if archive_format == "no-archive":
                _write_folder(target, files, progress)
                return
            with _completed(target) as partial:
                if archive_format == "tgz":
                    _write_tar(partial, target.name.removesuffix(SUFFIXES["tgz"]), files, progress)
                else:
                    _write_zip(partial, archive_format, files, progress)


@contextmanager
def _completed(target: Path) -> Iterator[Path]:
    """A file to write to, which gets the name `target` at the end; if there is an error it is deleted."""
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _write_zip(target: Path, archive_format: str, files: Files, progress: Progress) -> None:
    compression = zipfile.ZIP_STORED if archive_format == "zip-store" else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(target, "w") as archive:
        for name, file in files:
            member = zipfile.ZipInfo.from_file(file, str(name), strict_timestamps=False)
            member.compress_type = compression
            with archive.open(member, "w") as sink, _ReportingFile(file, progress) as source:
                shutil.copyfileobj(source, sink, _CHUNK_BYTES)


def _write_tar(target: Path, top_folder: str, files: Files, progress: Progress) -> None:
    with tarfile.open(target, "w:gz", compresslevel=_GZIP_LEVEL, dereference=True) as archive:
        for name, file in files:
            with _ReportingFile(file, progress) as source:
                member = archive.gettarinfo(arcname=f"{top_folder}/{name}", fileobj=source)
                archive.addfile(_anonymous(member), source)


def _write_folder(target: Path, files: Files, progress: Progress) -> None:
    for name, file in files:
        copy = target / name
        if copy.exists() and copy.samefile(file):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        with _ReportingFile(file, progress) as source, copy.open("wb") as sink:
            shutil.copyfileobj(source, sink, _CHUNK_BYTES)
        shutil.copymode(file, copy)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the packer's account, which is private and would make equal archives differ."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


class _ReportingFile(io.FileIO):
    """A file that reports to a progress bar how much of it was read."""

    def __init__(self, path: Path, progress: Progress) -> None:
        super().__init__(path)
        self._progress = progress

    def read(self, size: int | None = -1, /) -> bytes:
        chunk = super().read(size)
        self._progress(len(chunk))
        return chunk
