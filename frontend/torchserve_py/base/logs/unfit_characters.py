"""Characters of a text from outside that forge, hide or break what is shown of it, in logs and on `/metrics`."""

import re
from typing import Final

#: Control characters except the tab, line and paragraph separators, bidirectional controls, and lone surrogates.
_UNFIT: Final = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_FIRST_SURROGATE: Final = 0xD800


def is_fit(text: str) -> bool:
    """Return whether a text is one line without such characters."""
    return (text.isascii() and text.isprintable()) or _UNFIT.search(text) is None


def fit(text: str) -> str:
    """Return the text as one line, with such characters as escapes such as ``\\\\n``."""
    return text if is_fit(text) else _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def fit_json(document: str) -> str:
    """Return a JSON document that ``json.dumps`` has written, with such characters as escapes.

    They are the escapes of JSON, so that readers get the text as it was; but half of a surrogate pair, which many
    readers refuse in any form, is spelled out: they get the six characters ``\\\\udc80``.
    """
    return document if is_fit(document) else _UNFIT.sub(_json_escape, document)


def _json_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\\\u{code:04x}" if code >= _FIRST_SURROGATE else f"\\u{code:04x}"
