"""The checksum that a URL may carry in its fragment, as pip's URLs do: ``https://…/noop.mar#sha256=<64 digits>``."""

import hashlib
import hmac
import re
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

#: Hash algorithms without known collisions, with the lengths of their digests; the names are pip's.
_DIGITS = {"sha256": 64, "sha384": 96, "sha512": 128}
_FRAGMENT = re.compile(r"([A-Za-z0-9_\-]+)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Checksum:
    """What the digest of a file must be: an algorithm of hashlib, and lower-case hexadecimal digits."""

    algorithm: str
    digits: str

    def check(self, file: Path, name: str) -> None:
        """Raise ValueError, calling the file `name`, when its content has another digest; OSError as reading does."""
        with file.open("rb") as content:
            found = hashlib.file_digest(content, self.algorithm).hexdigest()
        if not hmac.compare_digest(found, self.digits):
            raise ValueError(f"the {self.algorithm} of {name} is {found}, but the URL asks for {self.digits}")


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
