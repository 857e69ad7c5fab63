"""The frames of a WebSocket as they cross the socket between the frontend and a worker.

Each is the body of an `INPUT` message or of a result row: one byte that tells its kind, and the payload.
"""

from typing import Final

TEXT: Final = b"t"  # UTF-8
BYTES: Final = b"b"
CLOSE: Final = b"c"  # two bytes, big-endian: the code; then the reason in UTF-8
