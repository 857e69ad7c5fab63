"""URLs of archives: which the operator allows, and the names and checksums of their files.

A URL may carry the checksum of its content in its fragment, as in pip: ``https://…/noop.mar#sha256=<64 digits>``.
"""

import hashlib
import hmac
import os
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from torchserve_py.core.archive.errors import ArchiveNotFound
from ts.protocol.regular_files import open_regular

#: Hash algorithms without known collisions, with the lengths of their digests; the names are pip's.
_DIGITS = {"sha256": 64, "sha384": 96, "sha512": 128}
_FRAGMENT = re.compile(r"([A-Za-z0-9_\-]+)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DownloadPolicy:
    """What the operator allows archives to be downloaded from; nothing without patterns."""

    urls: Sequence[re.Pattern[str]] = ()  # ignoring case; one must match the whole of a URL, but for its checksum
    networks: Sequence[IPv4Network | IPv6Network] = ()  # what may be connected to beyond the public internet

    def check_url(self, url: str) -> None:
        """Raise ArchiveNotFound for a URL that no pattern matches."""
        if any(pattern.fullmatch(url) for pattern in self.urls):
            return
        example = "allowed_urls=https://models[.]example[.]com/.*"
        detail = f"allow it in config.properties with a pattern for the whole URL, such as {example}"
        raise ArchiveNotFound(f"Given URL {url} does not match any allowed URL(s)", detail)


@dataclass(frozen=True, slots=True)
class Checksum:
    """What the digest of a file must be: an algorithm of hashlib, and lower-case hexadecimal digits."""

    algorithm: str
    digits: str

    def check(self, file: Path, name: str) -> None:
        """Raise ValueError, calling the file `name`, when its content has another digest; OSError as reading does."""
        with os.fdopen(open_regular(file), "rb") as content:
            found = hashlib.file_digest(content, self.algorithm).hexdigest()
        if not hmac.compare_digest(found, self.digits):
            raise ValueError(f"the {self.algorithm} of {name} is {found}, but the URL asks for {self.digits}")


def file_name(url: str) -> str:
    """The file in the model store that `url` is downloaded to. Raises ValueError where the URL names none."""
    name = urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1]
    if not name or name.startswith(".") or "\\" in name:
        raise ValueError("the URL does not end in a file name")
    return name


def split_checksum(url: str) -> tuple[str, Checksum | None]:
    """The URL without its checksum, and the checksum. A fragment that is no `name=value` means nothing and stays.

    Raises ValueError for an algorithm that is not known, or digits that cannot be its.
    """
    bare, fragment = urllib.parse.urldefrag(url)
    named = _FRAGMENT.fullmatch(fragment)
    if not named:
        return url, None
    algorithm, digits = named[1].lower(), named[2].lower()
    length = _DIGITS.get(algorithm)
    if length is None:
        raise ValueError(f"#{named[1]} is no checksum that is known; use one of {', '.join(_DIGITS)}")
    if not re.fullmatch(f"[0-9a-f]{{{length}}}", digits):
        raise ValueError(f"#{algorithm}= must be followed by {length} hexadecimal digits")
    return bare, Checksum(algorithm, digits)
