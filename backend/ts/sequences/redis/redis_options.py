"""Options in the URL of a Redis database: redis-py takes any argument of its connections there, and some name code."""

from typing import Final
from urllib.parse import parse_qsl

#: Options that name a class, which redis-py imports or calls.
_CODE: Final = frozenset(("connection_class", "parser_class", "retry_class", "credential_provider", "queue_class"))


def options_that_name_code(url: str) -> list[str]:
    """Return the names of the options of a URL that would have redis-py load or call what the URL names."""
    names = [name for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True)]
    return [name for name in names if name in _CODE or name.endswith(("_class", "_func"))]
