"""The messages of GR00T's clients: a request names an endpoint, and its data is passed on unread."""

from collections.abc import Mapping
from typing import Any, Final

import msgpack
import msgspec

from torchserve_py.endpoints.failures import bad_request

_NIL: Final = b"\xc0"
#: What files of `torch.save` begin with, in which clients of GR00T N1 wrap their messages, and what pickles begin with.
_OF_TORCH: Final = b"PK"
_PICKLES: Final = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_MODALITY: Final = "__ModalityConfig_class__"


class Gr00tRequest(msgspec.Struct):
    """A request; ``data`` is msgpack."""

    endpoint: str = "get_action"
    data: msgspec.Raw = msgspec.Raw(_NIL)
    api_token: str | None = None


_REQUEST: Final = msgspec.msgpack.Decoder(Gr00tRequest)


def read_request(message: bytes | memoryview) -> Gr00tRequest:
    """Read a message. Raises EndpointError: it is no request."""
    if bytes(message[:2]) in (_OF_TORCH, *_PICKLES):
        raise bad_request(
            "This server reads no pickles, which can run any code. The client of the first GR00T sends them:"
            " use a newer one."
        )
    try:
        return _REQUEST.decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"The message is no request of GR00T's client: {error}") from error


def pack(answer: Mapping[str, Any]) -> bytes:
    """Return an answer of plain values as a message."""
    return bytes(msgpack.packb(answer))


def pack_modalities(modalities: Mapping[str, Any]) -> bytes:
    """Return a modality configuration as GR00T's client reads it."""
    return pack({name: {_MODALITY: True, "as_json": config} for name, config in modalities.items()})
