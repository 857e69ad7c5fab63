"""URLs of a Redis behind Sentinels: ``redis+sentinel://user:password@host:26379,host:26379/service/0?options``.

The user, the password, the database and the options are for the Redis servers, the options ``sentinel_username`` and
``sentinel_password`` for the Sentinels. ``rediss+sentinel`` means TLS for both.
"""

from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

_PORT: Final = 26379
_SCHEMES: Final = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
_SENTINEL_OPTIONS: Final = {"sentinel_username": "username", "sentinel_password": "password"}


class SentinelUrl(NamedTuple):
    """What the URL says; ``login`` is for the Sentinels, ``redis_url`` for the service's servers, without a host."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    login: dict[str, str]
    redis_url: str


def is_sentinel_url(url: str) -> bool:
    """Whether the URL names Sentinels."""
    return url.partition("://")[0] in _SCHEMES


def split_sentinel_url(url: str) -> SentinelUrl:
    """Return what the URL says. Raises ValueError: a host or a port cannot be used; the message does not quote them."""
    scheme, _, rest = url.partition("://")
    address, _, query = rest.partition("?")
    place, _, path = address.partition("/")
    user, at, hosts = place.rpartition("@")
    service, _, database = path.partition("/")
    options = parse_qsl(query, keep_blank_values=True)
    login = {_SENTINEL_OPTIONS[name]: value for name, value in options if name in _SENTINEL_OPTIONS}
    others = urlencode([pair for pair in options if pair[0] not in _SENTINEL_OPTIONS])
    return SentinelUrl(
        tuple(_host_and_port(each) for each in hosts.split(",")),
        unquote(service),
        login,
        f"{_SCHEMES[scheme]}://{user}{at}/{database}?{others}",
    )


def _host_and_port(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise ValueError("each Sentinel needs a host and, unless it is 26379, a port")
    return host, port or _PORT
