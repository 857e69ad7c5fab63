"""Checks that the settings in `handler: cache:` of `model-config.yaml` fit together."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from torchserve_py.settings.schemas.cache import CacheConfig

_PLACE = "handler.cache."
#: The keys of each store beyond the common ones; and the keys that a store requires.
_OWN_KEYS = {"memory": (), "file": ("path", "fsync"), "redis": ("url", "replicas")}
_NEEDED = {"redis": ("url", "where Redis is, for example redis://localhost:6379/0")}
_DURABLE_KEYS = ("lease",)


def _store_problems(cache: CacheConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the keys and the message for each setting that the store does not use, or that it lacks."""
    allowed = {"store", "capacity", *_OWN_KEYS[cache.store], *(_DURABLE_KEYS if cache.durable else ())}
    for key in CacheConfig.key_names():
        if key not in allowed and key in cache.model_fields_set:
            problem = f"{_PLACE}{key} has no meaning for store: {cache.store}; leave it out or choose another store"
            yield (f"{_PLACE}{key}",), problem
    needed, meaning = _NEEDED.get(cache.store, ("", ""))
    if needed and getattr(cache, needed) is None:
        problem = f"{_PLACE}store is {cache.store} but {_PLACE}{needed} is not set; it must be {meaning}"
        yield (f"{_PLACE}{needed}",), problem
    elif cache.store == "redis" and cache.url and (problem := _url_problem(cache.url)):
        yield (f"{_PLACE}url",), f"{_PLACE}url {problem}"


def _url_problem(url: str) -> str:
    """Return the problem of the URL of a Redis database, without the password that the URL may contain."""
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
    """Yield the keys and the message for each setting that contradicts a durable cache."""
    if cache is None:
        return
    yield from _store_problems(cache)
    if not cache.durable:
        return
    if not stateful:
        yield (
            ("handler.cache.store", "sequenceBatching"),
            f"handler.cache.store is {cache.store} but sequenceBatching is not true; without it there are no sequences",
        )
    if parallel:
        yield (
            ("handler.cache.store", "parallelType", "torchrun"),
            f"handler.cache.store is {cache.store} but the worker is several processes, each with a part of the state; "
            "use store: memory",
        )
