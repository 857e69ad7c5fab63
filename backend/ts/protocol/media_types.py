"""Media types of bodies that both the server and its workers name."""

from typing import Final

JSON: Final = "application/json"
#: Values of JSON, each on a line of its own.
JSON_LINES: Final = "application/x-ndjson"
TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"
#: Forms, with files and without.
MULTIPART: Final = "multipart/form-data"
FORM: Final = "application/x-www-form-urlencoded"
#: Server-sent events; each answer says that they are UTF-8.
EVENT_STREAM: Final = "text/event-stream"
EVENTS: Final = f"{EVENT_STREAM}; charset=utf-8"
