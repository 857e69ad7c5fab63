"""A model at rest, opened without unpacking it: all that its registration reads is there, and nothing else.

An archive becomes a folder for the time being, in which large files and files of other kinds are empty. It passes the
same checks as when it is unpacked, but for the checksums of the files not read. A folder is used in place.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from torchserve_py.archive.locate import PYTHON_SUFFIX
from torchserve_py.archive.model_files import ModelFiles, open_folder, open_model
from torchserve_py.archive.target import Target
from torchserve_py.archive.unpack import unpack_into

#: Of files that say how a model is to be served, and of the file with its class.
_READ_SUFFIXES: Final = frozenset((".yaml", ".yml", ".json", ".toml", ".txt", ".lock", ".py"))
#: A registration reads at most so many bytes of each; one byte more shows that a file is larger.
_MAX_BYTES: Final = 1 << 20


@contextlib.contextmanager
def outline(path: Path, *, url: str, handler: str | None = None) -> Iterator[ModelFiles]:
    """Open the archive file or the folder at `path`; `url` and `handler` are as in `open_model`.

    Raises ArchiveError with what unpacking it would raise.
    """
    if not path.is_file() or path.suffix == PYTHON_SUFFIX:
        yield open_model(path, path, url=url, handler=handler)
        return
    with tempfile.TemporaryDirectory(prefix="torchserve-outline-") as folder:
        unpack_into(_Outline(url, Path(folder)), path)
        yield open_folder(Path(folder), url, url, handler)


def files_in(model_dir: Path) -> frozenset[str]:
    """The paths of all files in a model's folder, relative to it."""
    return frozenset(str(file.relative_to(model_dir)) for file in model_dir.rglob("*") if file.is_file())


class _Outline(Target):
    """Writes every file, but for most of them no content."""

    def _read(self, path: Path, content: BinaryIO) -> Iterator[bytes]:
        if path.suffix in _READ_SUFFIXES:
            yield content.read(_MAX_BYTES + 1)
