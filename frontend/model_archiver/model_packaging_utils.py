"""The tables and helpers of TorchServe's archiver; `generate_model_archive` does all of this at once."""

import shutil
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import Final

from model_archiver.manifest_components.manifest import Manifest
from model_archiver.manifest_components.model import Model
from model_archiver.model_archiver_config import ModelArchiverConfig
from model_archiver.model_archiver_error import ModelArchiverError
from torchserve_py.archives.archiver.artifacts import Artifacts
from torchserve_py.archives.archiver.handler_file import packed_handler
from torchserve_py.archives.archiver.pack import SUFFIXES as archiving_options
from torchserve_py.archives.archiver.pack import ArchiveFormat, check_name, make_room, write_archive
from torchserve_py.core.archive.built_in_handlers import BUILT_IN_HANDLERS as model_handlers

__all__ = ["ModelExportUtils", "archiving_options", "model_handlers"]

MODEL_SERVER_VERSION: Final = "1.0"
MODEL_ARCHIVE_VERSION: Final = "1.0"
MANIFEST_FILE_NAME: Final = "MANIFEST.json"
MAR_INF: Final = "MAR-INF"
_LEFT_OUT: Final = (".pyc", ".DS_Store", ".mar")


class ModelExportUtils:
    """The steps of making an archive, for tools that take them one by one."""

    @staticmethod
    def get_archive_export_path(export_file_path: str, model_name: str, archive_format: ArchiveFormat) -> str:
        """Return the path of an archive."""
        return str(Path(export_file_path) / f"{model_name}{archiving_options[archive_format]}")

    @staticmethod
    def check_mar_already_exists(
        model_name: str, export_file_path: str | None, overwrite: bool, archive_format: ArchiveFormat = "default"
    ) -> str:
        """Return the folder of the archive, the current one if None. Raises ModelArchiverError: the archive exists."""
        folder = export_file_path or str(Path.cwd())
        path = ModelExportUtils.get_archive_export_path(folder, model_name, archive_format)
        make_room(Path(path), force=overwrite)
        return folder

    @staticmethod
    def find_unique(files: Iterable[str], suffix: str) -> str | None:
        """Return the one file with a suffix, None if there is none. Raises ModelArchiverError: there are several."""
        found = [file for file in files if file.endswith(suffix)]
        if len(found) > 1:
            raise ModelArchiverError(f"There must be one {suffix} file in the folder, there are {len(found)}: {found}")
        return found[0] if found else None

    @staticmethod
    def generate_model(modelcfg: ModelArchiverConfig) -> Model:
        """Return what the manifest says of the model."""
        return Model(
            modelcfg.model_name,
            modelcfg.serialized_file,
            modelcfg.handler or "",
            modelcfg.model_file,
            modelcfg.version,
            requirements_file=modelcfg.requirements_file,
            config_file=modelcfg.config_file,
        )

    @staticmethod
    def generate_manifest_json(config: ModelArchiverConfig) -> str:
        """Return the text of the manifest."""
        return str(Manifest(config.runtime, ModelExportUtils.generate_model(config)))

    @staticmethod
    def clean_temp_files(temp_files: Iterable[str]) -> None:
        """Delete files. Raises OSError."""
        for file in temp_files:
            Path(file).unlink()

    @staticmethod
    def make_dir(d: str) -> None:
        """Make a folder, and those above it, unless it exists. Raises OSError."""
        Path(d).mkdir(parents=True, exist_ok=True)

    @staticmethod
    def archive(
        export_file: str, model_name: str, model_path: str, manifest: str, archive_format: ArchiveFormat = "default"
    ) -> None:
        """Write an archive of a folder into another one. Raises OSError."""
        target = Path(ModelExportUtils.get_archive_export_path(export_file, model_name, archive_format))
        artifacts = Artifacts(leave_out=target)
        artifacts.add_extra_files(model_path)
        write_archive(target, artifacts, PurePosixPath(MAR_INF, MANIFEST_FILE_NAME), manifest, archive_format)

    @staticmethod
    def directory_filter(directory: str, unwanted_dirs: Collection[str]) -> bool:
        """Return whether a folder of that name goes into an archive."""
        return not (directory in unwanted_dirs or directory.startswith("."))

    @staticmethod
    def file_filter(current_file: str, files_to_exclude: Collection[str]) -> bool:
        """Return whether a file of that name goes into an archive."""
        excluded = current_file in files_to_exclude or current_file == MANIFEST_FILE_NAME
        return not (excluded or current_file.endswith(_LEFT_OUT))

    @staticmethod
    def check_model_name_regex_or_exit(model_name: str) -> None:
        """Raise ModelArchiverError if a model cannot have that name."""
        check_name(model_name, "model")

    @staticmethod
    def validate_inputs(model_name: str, export_path: str) -> None:
        """Check the name of a model, and make the folder that its archive goes to.

        Raises ModelArchiverError: one of them cannot be used.
        """
        check_name(model_name, "model")
        try:
            ModelExportUtils.make_dir(export_path)
        except FileExistsError as error:
            raise ModelArchiverError(f"Given export-path {export_path} is not a directory.") from error

    @staticmethod
    def copy_artifacts(model_name: str, runtime: str, **kwargs: str | None) -> str:
        """Copy the files of an archive into a folder below the system's temporary one, and return the folder.

        ``kwargs`` are the paths of `ModelArchiverConfig` by name. Raises FileNotFoundError: a file is not there;
        ModelArchiverError: the handler cannot be one; OSError.
        """
        folder = Path(tempfile.gettempdir(), model_name)
        artifacts = Artifacts(leave_out=folder)
        handler, extra_files = kwargs.pop("handler", None), kwargs.pop("extra_files", None)
        artifacts.add_files(packed_handler(handler, runtime)[1] if handler else None, *kwargs.values())
        if extra_files:
            artifacts.add_extra_files(extra_files)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, file in artifacts.sorted_files():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, folder / name)
        return str(folder)
