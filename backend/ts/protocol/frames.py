"""Frames: a 4-byte big-endian length, then one msgpack array ``[kind, …]``.

Both ends of the socket use this module. Encoding yields a list of buffers instead of one joined block, so that a
large body goes from the caller's memory to the kernel without a copy in between (``socket.sendmsg`` or
``transport.writelines``). Decoding is incremental: `FrameBuffer` offers the memory to receive into and hands out complete
frames.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack

Buffer = bytes | bytearray | memoryview

LENGTH = struct.Struct(">I")
#: A body at least this long is sent as a buffer of its own; below it a copy is cheaper than another buffer.
LARGE_BODY = 32 * 1024
#: Nothing longer than this is ever a frame: the length field is corrupt or the peer hostile.
MAX_FRAME = 2**31 - 1
