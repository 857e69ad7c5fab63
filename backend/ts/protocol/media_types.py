"""Media types of bodies that both the server and its workers name."""

from typing import Final

JSON: Final = "application/json"
#: Values of JSON, each on a line of its own.
JSON_LINES: Final = "application/x-ndjson"
TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"
#: Server-sent events, of which each answer says that they are UTF-8.
EVENTS: Final = "text/event-stream; charset=utf-8"
