"""What lies in the place of a model's file: git-lfs and web servers leave other things there, under the same name."""

import os
from typing import Final

from ts.protocol.regular_files import open_regular

_LFS: Final = b"version https://git-lfs.github.com/spec/"
_HTML: Final = (b"<!doctype html", b"<html")
_XML: Final = (b"<?xml", b"<error>")
#: Files that are never texts of these kinds.
_BINARY: Final = (
    *(".pt", ".pth", ".pt2", ".bin", ".ckpt", ".safetensors", ".onnx", ".so", ".gguf", ".joblib", ".pkl", ".pickle"),
    *(".npy", ".npz", ".h5", ".msgpack", ".model", ".mar", ".war", ".zip", ".tgz", ".gz", ".tar"),
)
_READ: Final = 256
_MOST_FILES: Final = 1000


def misplaced(path: str | os.PathLike[str]) -> str:
    """Return what a file is in place of a model's, and what to do; empty if it may be what its name says."""
    try:
        descriptor = open_regular(path)
        try:
            start = os.read(descriptor, _READ)
        finally:
            os.close(descriptor)
    except OSError:
        return ""
    return misplaced_content(start)


def misplaced_content(start: bytes) -> str:
    """Return the same for the first bytes of a file."""
    if start.startswith(_LFS):
        return "is a git-lfs pointer, not the file that it stands for: run 'git lfs pull'"
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith(_HTML):
        return "is an HTML page, such as a web server's page for a login or an error: download the file again"
    if text.startswith(_XML):
        return "is an XML text, such as a store's message of an error: download the file again"
    return "" if start else "is empty: download or copy the file again"


def misplaced_in(folder: str) -> str:
    """Return the same, with its name, for a file of a model's folder that has the name of a binary one; or empty."""
    count = 0
    for place, _, files in os.walk(folder):
        for name in sorted(files):
            if name.lower().endswith(_BINARY) and (what := misplaced(os.path.join(place, name))):  # noqa: PTH118
                return f"{name} {what}"
        count += len(files)
        if count > _MOST_FILES:
            break
    return ""
