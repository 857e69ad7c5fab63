"""The files of a page that an endpoint shows: those of its own folder, and the parts that pages share.

A browser finds both in one folder, so that a module imports a shared part as it imports its neighbours.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

#: The parts: elements, and the form of a model's values.
PARTS: Final = Path(__file__).parent / "page_parts"
#: The content types of files by their suffix. Files with other suffixes, such as licences, are not shown.
TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def page_files(folder: Path) -> Mapping[str, Path]:
    """Return the files of a page by the paths, relative to the page, under which it asks for them. Looks once."""
    return {
        str(path.relative_to(root)): path
        for root in (PARTS, folder)
        for path in root.rglob("*")
        if path.suffix in TYPES
    }
