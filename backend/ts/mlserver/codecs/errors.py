"""What can go wrong between tensors and Python values; the client is answered 400."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ts.mlserver.errors import MLServerError
from ts.mlserver.types import RequestInput


class CodecNotFound(MLServerError):
    """There is no codec for a value, or none for a content type."""

    def __init__(
        self,
        name: str | None = None,
        payload_type: str | None = None,
        is_input: bool = False,
        is_request: bool = False,
    ) -> None:
        said = [f"name '{name}'"] if name else []
        said += [f"type {payload_type}"] if payload_type else []
        direction, kind = ("input", "request") if is_input else ("output", "response")
        super().__init__(
            f"Codec not found for {direction} {kind if is_request else 'field'}"
            + " with " * bool(said)
            + " and ".join(said)
        )


class CodecError(MLServerError):
    """A tensor is not what its codec expects."""

    def __init__(self, msg: str) -> None:
        super().__init__(f"There was an error encoding / decoding the payload: {msg}")


class OutputNotFound(MLServerError):
    """A function decorated with `decode_args` returned what its signature does not say."""

    def __init__(self, output_idx: int, output_type: type[Any], output_hints: Sequence[Any]) -> None:
        expected = ", ".join(f"'{hint}'" for hint in output_hints)
        super().__init__(
            f"Unexpected output value at position '{output_idx}' ({output_type}). "
            f"Expected outputs are {expected} outputs."
        )


class InputsNotFound(MLServerError):
    """A request has inputs that a function decorated with `decode_args` does not take."""

    def __init__(self, inputs: Iterable[RequestInput], input_hints: Iterable[str]) -> None:
        unknown = ", ".join(f"'{each.name}'" for each in inputs)
        known = ", ".join(f"'{name}'" for name in input_hints)
        super().__init__(f"Input {unknown} was not found. Available inputs are {known}.")


class InputMissing(MLServerError):
    """A request lacks an input that a function decorated with `decode_args` needs."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(f"The request lacks the input {', '.join(map(repr, names))}.")
