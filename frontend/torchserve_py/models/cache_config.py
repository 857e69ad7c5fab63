"""`handler: cache:` of `model-config.yaml`: what is beneath the handler's `ts.sequence.SequenceCache`.

The rest of `handler` is the handler's own. Of this map every key is the server's, and one that it does not know is
refused: a misspelt `fsync` would be found out by the loss of data.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from torchserve_py.schemas.schema import ClosedSchema, read
from torchserve_py.schemas.values import FLAG, SECONDS, Choice, Integer, Text

DEFAULT_LEASE = 10.0
"""Seconds."""


class CacheConfig(ClosedSchema):
    """How the states of sequences are kept. `lease` is seconds.

    `capacity` None: as many as there may be sequences. `path` None: see `torchserve_py.models.sequence_files`.
    """

    store: Annotated[Literal["memory", "file", "redis"], Choice("memory", "file", "redis")] = "memory"
    capacity: Annotated[int | None, Integer(1)] = None
    path: Text = None
    fsync: Annotated[bool, FLAG] = False
    url: Text = None
    replicas: Annotated[int, Integer(0)] = 0
    lease: Annotated[float, SECONDS] = DEFAULT_LEASE

    @property
    def durable(self) -> bool:
        """Whether a state outlives the worker that runs its sequence."""
        return self.store != "memory"


_PLACE = "handler.cache."
#: Which keys a store has beside those that all have, and which of them it needs.
_OWN_KEYS = {"memory": (), "file": ("path", "fsync"), "redis": ("url", "replicas")}
_NEEDED = {"redis": ("url", "where Redis is, for example redis://localhost:6379/0")}
_DURABLE_KEYS = ("lease",)


def read_cache(handler: object, lines: Mapping[str, int], refused: dict[str, str]) -> CacheConfig | None:
    """The cache of the `handler` map; None if it says nothing of one.

    `lines` has the lines of the file's keys; `refused` gets the name and fault of what cannot be used.
    """
    given = handler.get("cache") if isinstance(handler, Mapping) else None
    if given is None:
        return None
    line = lines.get("handler")
    where = f"line {line}: " if line else ""
    if not isinstance(given, Mapping):
        refused["handler.cache"] = f"{where}handler.cache must be a map, for example {{store: file}}"
        return None
    cache, problems = read(CacheConfig, given, place=_PLACE, lines=lines)
    refused.update(problems)
    if f"{_PLACE}store" not in refused:
        _check_keys(cache.store, given, where, refused)
    return cache


def _check_keys(store: str, given: Mapping[Any, Any], where: str, refused: dict[str, str]) -> None:
    allowed = {"store", "capacity", *_OWN_KEYS[store], *(_DURABLE_KEYS if store != "memory" else ())}
    for key in CacheConfig.key_names():
        if key not in allowed and given.get(key) is not None:
            problem = f"{_PLACE}{key} has no meaning for store: {store}; leave it out or choose another store"
            refused.setdefault(f"{_PLACE}{key}", where + problem)
    needed, meaning = _NEEDED.get(store, ("", ""))
    if needed and given.get(needed) is None:
        problem = f"{_PLACE}store is {store} but {_PLACE}{needed} is not set; it must be {meaning}"
        refused[f"{_PLACE}{needed}"] = where + problem
    elif store == "redis" and f"{_PLACE}url" not in refused and (problem := _url_problem(given["url"])):
        refused[f"{_PLACE}url"] = f"{where}{_PLACE}url {problem}"


def _url_problem(url: str) -> str:
    """What is wrong with the URL of a Redis database, told without the password that may be in it."""
    shown = repr(re.sub(r"^(\w*:?//)?.*@", r"\1…@", url))
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # which may quote the password: one with a slash ends the host early
        return f"is {shown}, which has no usable port; /, ?, #, [ and ] in a password must be percent-encoded"
    if parts.scheme not in {"redis", "rediss", "unix"}:
        return f"is {shown}, it must be redis://host:port/number, rediss://… for TLS, or unix:///path/of/the/socket"
    if parts.scheme == "unix" and not parts.path.strip("/"):
        return f"is {shown}, it must name the socket: unix:///path/of/the/socket"
    number = parts.path.strip("/")
    if parts.scheme != "unix" and number and not number.isdecimal():
        return f"is {shown}, but Redis' databases have numbers, such as redis://host:port/0"
    return ""


def cache_contradictions(
    cache: CacheConfig | None, *, stateful: bool, parallel: bool
) -> Iterator[tuple[tuple[str, ...], str]]:
    """The keys and the text of each setting that cannot be meant together with a durable cache."""
    if cache is None or not cache.durable:
        return
    if not stateful:
        yield (
            ("handler.cache.store", "sequenceBatching"),
            f"handler.cache.store is {cache.store} but sequenceBatching is not true; there are no sequences then",
        )
    if parallel:
        yield (
            ("handler.cache.store", "parallelType", "torchrun"),
            f"handler.cache.store is {cache.store} but the worker is several processes, each with a part of the state; "
            "use store: memory",
        )
