"""The charset that a content type names, by which bodies of text are read whatever contract a model has.

A client chooses the name. Only names in Python's table of charsets count: Python keeps every other name that it is
asked for, and has codecs besides charsets.
"""

import functools
import re
from encodings import normalize_encoding
from encodings.aliases import aliases
from typing import Final, NoReturn

from ts.jobs.errors import RowFailure

#: The charset of a body whose content type names none.
UTF_8: Final = "utf_8"
_PARAMETER: Final = re.compile(r""";\s*charset\s*=\s*["']?([^"';\s]*)""", re.IGNORECASE)
_NO_CHARSETS: Final = frozenset(
    ("base64_codec", "bz2_codec", "hex_codec", "mbcs", "quopri_codec", "rot_13", "uu_codec", "zlib_codec")
)
_CHARSETS: Final = frozenset(aliases.values()) - _NO_CHARSETS


@functools.lru_cache(maxsize=256)
def charset_of(content_type: str | bytes | None) -> str | None:
    """Return the charset of a body, by Python's name; None for one that is not known."""
    if not content_type:
        return UTF_8
    text = content_type.decode("latin-1") if isinstance(content_type, bytes) else content_type
    named = _PARAMETER.search(text)
    if named is None or not named[1]:
        return UTF_8
    name = normalize_encoding(named[1].lower())
    name = aliases.get(name, name)
    return name if name in _CHARSETS else None


def refuse_charset(content_type: str | bytes | None) -> NoReturn:
    """Refuse a body whose charset is not known. Raises RowFailure: status 415, which names the content type."""
    raise RowFailure(415, f"Header Content-Type: {content_type!r} names a charset that is not known; send UTF-8.")


def in_utf8(body: bytes, content_type: str | bytes | None) -> bytes:
    """Return a body of text in UTF-8; as it is if that is its charset.

    Raises RowFailure: its charset is not known (415), or it is not text in that charset (400).
    """
    charset = charset_of(content_type)
    if charset == UTF_8:
        return body
    return decoded(body, content_type).encode("utf-8", "surrogatepass")


def decoded(body: bytes, content_type: str | bytes | None) -> str:
    """Return a body of text, without a byte order mark.

    Raises RowFailure: its charset is not known (415), or it is not text in that charset (400).
    """
    charset = charset_of(content_type)
    if charset is None:
        refuse_charset(content_type)
    try:
        return str(body, charset).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise RowFailure(400, f"The body is not text in the charset of its content type: {error}") from error
