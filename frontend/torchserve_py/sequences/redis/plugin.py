"""The store `redis`."""

from collections.abc import Iterator, Mapping
from typing import Any

from torchserve_py.plugin_api import Plugin, StoreOffer

_KEYS = ("url", "replicas", "lease", "stateVersion", "maxStateSize", "rememberIds")


def _problems(cache: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from torchserve_py.sequences.redis.redis_url import redis_url_problem

    place = "handler.cache."
    url = cache["url"]
    if url is None:
        meaning = "where Redis is, for example redis://localhost:6379/0"
        yield "url", f"{place}store is redis but {place}url is not set; it must be {meaning}"
    elif problem := redis_url_problem(url):
        yield "url", f"{place}url {problem}"


PLUGIN = Plugin(
    name="redis",
    stores={"redis": StoreOffer("ts.sequences.redis.open_redis", _KEYS, _problems)},
)
