"""What is wrong with the URL of a Redis database, or of its Sentinels, before anything connects to it."""

import re
from typing import Final
from urllib.parse import urlsplit

from ts.sequences.redis.redis_options import options_that_name_code
from ts.sequences.redis.sentinel_url import is_sentinel_url, split_sentinel_url

#: Of the URLs of Redis databases.
_FORMS: Final = (
    "redis://host:port/number, rediss://… for TLS, unix:///path/of/the/socket, or"
    " redis+sentinel://host:port,host:port/service/number"
)


def redis_url_problem(url: str) -> str:
    """Return what is wrong with the URL of a Redis database, without the passwords in it; "" if nothing is."""
    shown = repr(re.sub(r"\?.*", "?…", re.sub(r"^([\w+]*:?//)?.*@", r"\1…@", url)))
    if code := options_that_name_code(url):
        return f"is {shown}, and its option {code[0]!r} names code, which no URL may do: leave it out"
    if is_sentinel_url(url):
        return _sentinel_problem(url, shown)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # which may quote the password: one with a slash ends the host early
        return f"is {shown}, which has no usable port; /, ?, #, [ and ] in a password must be percent-encoded"
    if parts.scheme not in {"redis", "rediss", "unix"}:
        return f"is {shown}, it must be {_FORMS}"
    if parts.scheme == "unix" and not parts.path.strip("/"):
        return f"is {shown}, it must name the socket: unix:///path/of/the/socket"
    number = parts.path.strip("/")
    if parts.scheme != "unix" and number and not number.isdecimal():
        return f"is {shown}, but Redis' databases have numbers, such as redis://host:port/0"
    return ""


def _sentinel_problem(url: str, shown: str) -> str:
    form = "redis+sentinel://host:26379,host:26379/service/0"
    try:
        named = split_sentinel_url(url)
    except ValueError as error:
        return f"is {shown}, but {error}: {form}; /, ? and , in a password must be percent-encoded"
    number = urlsplit(named.redis_url).path.strip("/")
    if not named.service or "@" in named.service:  # a password with a slash
        return f"is {shown}, it must name the service that the Sentinels watch: {form}"
    if number and not number.isdecimal():
        return f"is {shown}, but Redis' databases have numbers: {form}"
    return ""
