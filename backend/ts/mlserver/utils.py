"""What models import from ``mlserver.utils``."""

from __future__ import annotations

import urllib.parse
import uuid
from collections.abc import Sequence
from pathlib import Path

from ts.mlserver.errors import InvalidModelURI
from ts.mlserver.settings import ModelSettings


async def get_model_uri(settings: ModelSettings, wellknown_filenames: Sequence[str] = ()) -> str:
    """Return where a model's artifacts are: a file, a folder, or a URI with another scheme than ``file``.

    Of a folder that has a file with one of the well-known names, that file is returned.

    Raises:
        InvalidModelURI: The settings name none, or nothing is there.
    """
    uri = settings.parameters.uri if settings.parameters else None
    if not uri:
        raise InvalidModelURI(settings.name)
    parts = urllib.parse.urlparse(uri, scheme="file")
    if parts.scheme != "file":
        return uri
    path = Path(to_absolute_path(settings, parts.path))
    if path.is_dir():
        known = (path / name for name in wellknown_filenames)
        return str(next((each for each in known if each.is_file()), path))
    if path.is_file():
        return str(path)
    raise InvalidModelURI(settings.name, str(path))


def to_absolute_path(model_settings: ModelSettings, uri: str) -> str:
    """Return a path that is meant relative to ``model-settings.json``."""
    source = model_settings._source
    return uri if source is None else str((Path(source).parent / uri).resolve())


def generate_uuid() -> str:
    """Return a new id."""
    return str(uuid.uuid4())
