"""Archives over HTTP: only from URLs that are allowed and from addresses that may be connected to (see `networks`).

The resolver enforces the policy on addresses, so that a connection goes to the very addresses that were checked.
aiohttp resolves no host that is an address already; such a host is checked before each request. Redirects are followed
here and pass the same checks as the first URL.
"""

import re
import socket
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from torchserve_py.core.archive.downloads import DownloadPolicy
from torchserve_py.core.archive.networks import Network, check_addresses, check_host

CHUNK_BYTES: Final = 1 << 20
_MAX_REDIRECTS: Final = 10
_REDIRECTS: Final = (301, 302, 303, 307, 308)
#: A host that every reader of URLs understands alike: no escapes, no other alphabets.
_AUTHORITY: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")


class PermittedAddresses(AbstractResolver):
    """Resolves names to addresses that may be connected to: of the public internet, and of the networks `allowed`."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = allowed
        self._system = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host. Raises Forbidden for an address not permitted, OSError if there is none."""
        found = await self._system.resolve(host, port, family)
        check_addresses(host, (each["host"] for each in found), self._allowed)
        return found

    async def close(self) -> None:
        await self._system.close()


@asynccontextmanager
async def opened(url: str, policy: DownloadPolicy, idle_seconds: float) -> AsyncIterator[aiohttp.ClientResponse]:
    """Yield the answer at an http or https URL that the policy allows, as it must what that redirects to.

    The body is still to be read. `idle_seconds` is how long connecting may take, and the pause between two pieces of
    data. Raises ArchiveNotFound (a redirect to another URL), ValueError (an unusable URL, a forbidden address, a status
    that is no success), OSError, and aiohttp.ClientError where the answer is no HTTP.
    """
    for _ in range(_MAX_REDIRECTS + 1):
        check_authority(url)
        target = URL(url, encoded=True)
        check_host(target.raw_host or "", policy.networks)
        proxy = _proxy_for(target)
        # A proxy of the operator's finds the addresses of names itself and decides which of them it connects to.
        resolver = PermittedAddresses(policy.networks) if proxy is None else aiohttp.ThreadedResolver()
        async with (
            _session(resolver, idle_seconds) as session,
            session.get(target, allow_redirects=False, proxy=proxy) as response,
        ):
            location = response.headers.get("location")
            if response.status not in _REDIRECTS or location is None:
                if not 200 <= response.status < 300:
                    raise ValueError(f"the server answered {response.status} {response.reason}")
                yield response
                return
        url = urllib.parse.urljoin(url, location)
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"it redirects to {url}, which is neither http nor https")
        policy.check_url(url)
    raise ValueError(f"it redirects more than {_MAX_REDIRECTS} times, perhaps in an infinite loop")


def check_authority(url: str) -> None:
    """Raise ValueError for a URL whose host is not written plainly: readers of URLs could take it for different hosts.

    A URL must hold no credentials either: they would appear in logs and mislead patterns, as in
    ``https://allowed.example@other.example/``.
    """
    authority = urllib.parse.urlsplit(url).netloc
    if "@" in authority:
        raise ValueError("a URL must not hold a user name or a password")
    if _AUTHORITY.fullmatch(authority) is None:
        raise ValueError(
            f"the host of a URL must be a plain name or address of ASCII letters, digits, dots and hyphens, it is"
            f" {authority!a}"
        )


def _session(resolver: AbstractResolver, idle_seconds: float) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, connect=idle_seconds, sock_read=idle_seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"accept-encoding": "identity"},
        auto_decompress=False,
        read_bufsize=CHUNK_BYTES,
    )


def _proxy_for(url: URL) -> str | None:
    """The proxy that the environment names for a URL (``http_proxy``, ``https_proxy``, ``no_proxy``)."""
    proxy = urllib.request.getproxies().get(url.scheme)
    if not proxy or urllib.request.proxy_bypass(url.raw_authority):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
