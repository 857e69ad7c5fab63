"""Converts REST requests with tensors in shared memory into requests with binary tensors, and their answers back.

So a worker needs no access to shared memory, and treats such tensors like binary ones.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from torchserve_py.apis.open_inference.shared_memory import RegionSlice, SharedMemory
from torchserve_py.base.bounded_json import MAX_PARSED
from torchserve_py.endpoints.failures import bad_request

REGION: Final = "shared_memory_region"
OFFSET: Final = "shared_memory_offset"
SIZE: Final = "shared_memory_byte_size"
REGION_MEMBER: Final = b'"shared_memory_region"'
_BINARY_SIZE: Final = "binary_data_size"

#: The places for outputs in shared memory, by the names of the outputs.
Places = Mapping[str, RegionSlice]


def place_of(memory: SharedMemory, what: str, parameters: dict[str, Any]) -> RegionSlice | None:
    """Take the place of a tensor out of its parameters; return None if they name no region.

    Raises EndpointError: there is no such place.
    """
    region = parameters.pop(REGION, None)
    offset, size = parameters.pop(OFFSET, None), parameters.pop(SIZE, None)
    return None if region is None else memory.place(what, region, offset, size)


def with_binary_tensors(
    memory: SharedMemory, body: bytes, json_size: int, hold: Callable[[int], None]
) -> tuple[bytes, int, Places] | None:
    """Return a body with the tensors of shared memory behind its JSON, the JSON's size, and the places for outputs.

    Return None if the JSON is malformed, which the worker refuses. ``hold`` counts bytes that the server holds for the
    request. Raises EndpointError: the JSON is large, or a place does not exist or has become shorter.
    """
    if json_size > MAX_PARSED:
        raise bad_request(f"A request with tensors in shared memory may have {MAX_PARSED} bytes of JSON.")
    view = memoryview(body)
    try:
        document = orjson.loads(view[:json_size])
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    pieces: list[bytes | memoryview | RegionSlice] = []
    start = json_size
    for name, parameters in _tensors(document, "inputs"):
        place = place_of(memory, f"Input {name!r}", parameters)
        size = parameters.get(_BINARY_SIZE)
        if place is not None:
            if size is not None:
                raise bad_request(f"Input {name!r} has both {REGION} and {_BINARY_SIZE}; it must have one of them.")
            parameters[_BINARY_SIZE] = place.size
            pieces.append(place)
        elif type(size) is int and size > 0:
            pieces.append(view[start : start + size])
            start += size
    outputs = {}
    for name, parameters in _tensors(document, "outputs"):
        place = place_of(memory, f"Output {name!r}", parameters)
        if place is not None:
            parameters["binary_data"] = True
            outputs[name] = place
    hold(memory.check_total([piece for piece in pieces if isinstance(piece, RegionSlice)]))
    text = orjson.dumps(document)
    binary = [memory.read(piece) if isinstance(piece, RegionSlice) else piece for piece in pieces]
    return b"".join([text, *binary, view[start:]]), len(text), outputs


def without_shared_outputs(
    memory: SharedMemory, body: bytes | bytearray, json_size: int, outputs: Places
) -> tuple[bytes, int]:
    """Write the requested outputs to shared memory; return the answer without their data, and the size of its JSON.

    Raises EndpointError: an output cannot be written to its place.
    """
    view = memoryview(body)
    document = orjson.loads(view[:json_size])
    kept: list[memoryview] = []
    start = json_size
    for name, parameters in _tensors(document, "outputs"):
        size = parameters.get(_BINARY_SIZE)
        if size is None:
            continue
        data = view[start : start + size]
        start += size
        place = outputs.get(name)
        if place is None:
            kept.append(data)
            continue
        memory.write(place, data)
        parameters.clear()
        parameters.update({REGION: place.region, OFFSET: place.offset, SIZE: size})
    text = orjson.dumps(document)
    return b"".join([text, *kept]), len(text)


def _tensors(document: Mapping[str, Any], member: str) -> Sequence[tuple[str, dict[str, Any]]]:
    """Return the names and parameters of tensors that have parameters, as far as they are well-formed."""
    given = document.get(member)
    found = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    return [(str(each.get("name")), each["parameters"]) for each in found if isinstance(each.get("parameters"), dict)]
