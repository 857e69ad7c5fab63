"""Secrets in URLs, which no page, message or log shows: the user with the password, and the query.

The query of a presigned URL is a signature, and that of a database may hold a password.
"""

import re
from typing import Final

_USER: Final = re.compile(r"(?<=//)[^\s/?#'\"<>]*@")
_QUERY: Final = re.compile(r"(\b[A-Za-z][\w+.-]*://[^\s?#'\"<>]*)\?[^\s#'\"<>]+")


def without_secrets(text: str) -> str:
    """Return a text whose URLs show ``***`` instead of secrets."""
    if "//" not in text:
        return text
    return _QUERY.sub(r"\1?***", _USER.sub("***@", text))
