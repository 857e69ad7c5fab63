"""Clients of Redis: of the one at a URL, or of the primary that Sentinels name."""

from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import SSLConnection, parse_url
from redis.retry import Retry

from ts.sequences.redis.redis_primary import CarefulSentinels, PrimaryTrust, connection_class
from ts.sequences.redis.sentinel_url import is_sentinel_url, split_sentinel_url
from ts.sequences.steps.stores.store import StoreError

#: How long (seconds) one Sentinel may take to answer: less than they take to replace a primary that has failed
#: together with one of them.
_SENTINEL_LIMIT: Final = 0.5
#: The options that a URL may have. The client takes more, some of which name code or change what commands return.
_OPTIONS: Final = frozenset(
    (
        *("db", "username", "password", "client_name", "protocol", "max_connections", "health_check_interval"),
        *("socket_timeout", "socket_connect_timeout", "socket_keepalive", "retry_on_timeout"),
        *("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_cert_reqs", "ssl_ciphers"),
        "ssl_check_hostname",
    )
)
#: How ids that are no valid text, which may come from clients, are written.
_ENCODING: Final = {"encoding_errors": "surrogatepass"}


class Opened(NamedTuple):
    """A client, what its Redis is called in messages, and, with Sentinels, for how long its primary is believed."""

    client: redis.Redis
    name: str
    trust: PrimaryTrust | None


def open_client(url: str, limit: float) -> Opened:
    """Return a client, which connects when it is used.

    Raises StoreError: the URL is not one of Redis.

    Args:
        limit: For how long it waits for an answer (seconds); a primary is waited for as long as it is believed.
    """
    try:
        return _open_primary(url, limit) if is_sentinel_url(url) else _open_one(url, limit)
    except ValueError as error:
        raise StoreError(f"the url of the sequence store is not one of Redis: {error}") from error


def _check_options(url: str) -> None:
    """Raise ValueError if an option of a URL is unknown; the message does not quote its value."""
    for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise ValueError(f"the option {name!r} is unknown or not allowed; there are {', '.join(sorted(_OPTIONS))}")


def _open_one(url: str, limit: float) -> Opened:
    _check_options(url)
    client = redis.Redis.from_url(url, socket_timeout=limit, socket_connect_timeout=limit, **_ENCODING)
    where = client.connection_pool.connection_kwargs
    return Opened(client, where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}", None)


def _open_primary(url: str, limit: float) -> Opened:
    named = split_sentinel_url(url)
    _check_options(named.redis_url)
    options = parse_url(named.redis_url)  # type: ignore[no-untyped-call]
    uses_tls = options.pop("connection_class", None) is SSLConnection
    each = min(_SENTINEL_LIMIT, limit / len(named.sentinels))
    sentinel_options = {
        **{name: value for name, value in options.items() if name.startswith("ssl_")},
        **named.login,
        "ssl": uses_tls,
        "socket_timeout": each,
        "socket_connect_timeout": each,
        "retry": Retry(NoBackoff(), 0),
    }
    options = {"socket_timeout": limit, "socket_connect_timeout": limit, **options, **_ENCODING}
    options["connection_class"] = connection_class(uses_tls=uses_tls)
    sentinels = CarefulSentinels(named.sentinels, sentinel_kwargs=sentinel_options, **options)  # type: ignore[no-untyped-call]
    hosts = ",".join(f"{host}:{port}" for host, port in named.sentinels)
    primary: redis.Redis = sentinels.master_for(named.service)  # type: ignore[no-untyped-call]
    return Opened(primary, f"{hosts}/{named.service}", PrimaryTrust(primary, sentinels, named.service))
