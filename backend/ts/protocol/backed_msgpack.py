"""msgpack of any origin, read so that it allocates in proportion to its bytes.

An array or map of msgpack begins with how many items it has, and `msgpack.unpackb` makes room for all of them before
it has seen one. It limits each claim by the length of the whole, but each array within another may claim as much: 100
kB make it allocate a gigabyte.
"""

from typing import Any, Final

import msgpack

#: Bytes that are read without a look at what they claim: that is a few megabytes at most.
_SMALL: Final = 1024


def unpack(packed: Any, **options: Any) -> Any:
    """Return or raise what `msgpack.unpackb` does, but allocate no more than the bytes back.

    Args:
        packed: The bytes, or another buffer of them.
        options: Those of `msgpack.unpackb`.
    """
    if len(packed) > _SMALL:
        reader = msgpack.Unpacker(max_buffer_size=len(packed))
        reader.feed(packed)
        try:
            reader.skip()  # reads all of it, and makes nothing of it
        except msgpack.OutOfData as error:
            raise ValueError("Unpack failed: incomplete input") from error
    return msgpack.unpackb(packed, **options)
