"""`--models` and `load_models`: which models to load at start-up, and under which names.

A value is a comma-separated list of `location` or `name=location`. `=` and `,` are legal in URLs, but TorchServe splits
URLs there. Here a URL continues after a comma unless the text after the comma starts a new value; see `_starts_value`.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

#: How the names of archives end, in any case.
ARCHIVE_SUFFIXES = (".mar", ".model", ".tar.gz", ".tgz", ".zip")

_URL = re.compile(r"(?:file|https?)://", re.IGNORECASE)
_NAME = re.compile(r"([^=:/?#]*)=(.*)", re.DOTALL)
_ENDS_AS_ARCHIVE = re.compile(r"[^?#]*\.(?:mar|model|tar\.gz|tgz|zip)", re.IGNORECASE)


class ModelSpec(NamedTuple):
    """One model to load: its name (None: the name in its manifest) and its location."""

    name: str | None
    location: str

    def __str__(self) -> str:
        """Return the model as a list of models writes it."""
        return self.location if self.name is None else f"{self.name}={self.location}"


def is_archive_name(name: str) -> bool:
    """Return whether a file of that name is an archive."""
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def is_url(location: str) -> bool:
    """Return whether a location is a URL (it starts with http://, https:// or file://) and not a path."""
    return bool(_URL.match(location))


def parse_model_specs(value: str | Iterable[str]) -> list[ModelSpec]:
    """Read `load_models`, or the values of `--models`. Empty values are ignored.

    Raises ValueError: a value has no location, or an empty name.
    """
    texts = [value] if isinstance(value, str) else list(value)
    return [_parse_value(item) for text in texts for item in _split(text)]


def expand_model_specs(specs: Iterable[ModelSpec], model_store: Path) -> list[ModelSpec]:
    """Replace `all`, in any case, by everything in `model_store` that looks like a model, sorted; other values stay.

    A model that another value names is not loaded twice. A model is every folder, and every file with the name of an
    archive (`ARCHIVE_SUFFIXES`), unless the name starts with a dot. In place of a folder that holds nothing but
    folders stand MLServer's models one or two levels below it. Empty and unreadable folders, such as the `lost+found`
    of a volume, are ignored.
    """
    specs = list(specs)
    others = [spec for spec in specs if not _means_all(spec)]
    if others == specs:
        return specs
    named = {spec.location for spec in others}
    entries = (entry for entry in model_store.iterdir() if not entry.name.startswith("."))
    models = [entry for entry in entries if holds_anything(entry) or is_archive_name(entry.name)]
    paths = [path for model in models for path in _mlserver_models(model) or [model]]
    found = sorted(str(path.relative_to(model_store)) for path in paths)
    return [ModelSpec(None, name) for name in found if name not in named] + others


def _means_all(spec: ModelSpec) -> bool:
    return spec.name is None and spec.location.lower() == "all"


def holds_anything(folder: Path) -> bool:
    """Whether it is a folder that is not empty."""
    try:
        return folder.is_dir() and any(folder.iterdir())
    except OSError:  # the folder is not readable
        return False


def _mlserver_models(entry: Path) -> list[Path]:
    """Return the folders of MLServer's models, one or two levels below a folder that holds nothing but folders.

    What is hidden does not count.
    """
    try:
        if not entry.is_dir() or not all(child.is_dir() for child in entry.glob("[!.]*")):
            return []
        found = [path for below in ("[!.]*", "[!.]*/[!.]*") for path in entry.glob(f"{below}/model-settings.json")]
    except OSError:  # a folder is not readable
        return []
    return [path.parent for path in found]


def fallback_name(location: str) -> str:
    """Return the name of a model without a name in its manifest: from the end of its location, as in TorchServe."""
    if is_url(location):
        location = re.split(r"[?#]", location, maxsplit=1)[0]
    name = location.rstrip("/").rsplit("/", 1)[-1]
    if ".mar" in name or ".model" in name:
        name = name.rsplit(".", 1)[0]
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _split(text: str) -> Iterator[str]:
    value = ""
    for chunk in text.split(","):
        if value and is_url(_location(value)) and not _starts_value(value, chunk):
            value += "," + chunk
            continue
        if value.strip():
            yield value.strip()
        value = chunk.lstrip()
    if value.strip():
        yield value.strip()


def _starts_value(url_value: str, chunk: str) -> bool:
    """Return whether `chunk`, which follows a comma, is a new value and not the rest of the URL before the comma.

    It is one if it is empty, a URL or the file name of an archive, or if the URL already ends in such a name.
    """
    chunk = chunk.strip()
    location = _location(chunk)
    is_archive = "/" not in location and _ENDS_AS_ARCHIVE.fullmatch(location)
    url_is_complete = _ENDS_AS_ARCHIVE.fullmatch(_location(url_value).strip())
    return bool(not chunk or url_is_complete or is_url(location) or is_archive)


def _location(value: str) -> str:
    named = _NAME.fullmatch(value)
    return named.group(2).lstrip() if named else value


def _parse_value(value: str) -> ModelSpec:
    named = _NAME.fullmatch(value)
    if not named:
        return ModelSpec(None, value)
    name, location = named.group(1).strip(), named.group(2).strip()
    if not name or not location:
        raise ValueError(f'"{value}" has no {"location behind" if name else "name before"} its "="')
    return ModelSpec(name, location)
