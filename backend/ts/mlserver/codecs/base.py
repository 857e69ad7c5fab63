"""The two kinds of codec: for one tensor (`InputCodec`), and for a whole request or response (`RequestCodec`).

Codecs of your own have the same class attributes and methods, and are registered with the decorators of
`ts.mlserver.codecs.registry`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ts.mlserver.types import InferenceRequest, InferenceResponse, RequestInput, ResponseOutput


class InputCodec:
    """Converts one tensor from and to a Python type.

    Attributes:
        ContentType: The name under which requests ask for the codec.
        TypeHint: The Python type, as `decode_args` finds it in a signature.
    """

    ContentType: ClassVar[str] = ""
    TypeHint: ClassVar[Any] = type(None)

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """Return whether ``payload`` is of the codec's type."""
        return False

    @classmethod
    def encode_output(cls, name: str, payload: Any, **kwargs: Any) -> ResponseOutput:
        """Make an output of ``payload``."""
        raise NotImplementedError

    @classmethod
    def decode_output(cls, response_output: ResponseOutput) -> Any:
        """Return the value of an output."""
        raise NotImplementedError

    @classmethod
    def encode_input(cls, name: str, payload: Any, **kwargs: Any) -> RequestInput:
        """Make an input of ``payload``."""
        raise NotImplementedError

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> Any:
        """Return the value of an input."""
        raise NotImplementedError


class RequestCodec:
    """Converts all tensors of a request or response at once from and to a Python type, such as a data frame.

    Attributes:
        ContentType: The name under which requests ask for the codec.
        TypeHint: The Python type, as `decode_args` finds it in a signature.
    """

    ContentType: ClassVar[str] = ""
    TypeHint: ClassVar[Any] = type(None)

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """Return whether ``payload`` is of the codec's type."""
        return False

    @classmethod
    def encode_response(
        cls, model_name: str, payload: Any, model_version: str | None = None, **kwargs: Any
    ) -> InferenceResponse:
        """Make a response of ``payload``."""
        raise NotImplementedError

    @classmethod
    def decode_response(cls, response: InferenceResponse) -> Any:
        """Return the value of a response."""
        raise NotImplementedError

    @classmethod
    def encode_request(cls, payload: Any, **kwargs: Any) -> InferenceRequest:
        """Make a request of ``payload``."""
        raise NotImplementedError

    @classmethod
    def decode_request(cls, request: InferenceRequest) -> Any:
        """Return the value of a request."""
        raise NotImplementedError


InputCodecLike = type[InputCodec] | InputCodec
RequestCodecLike = type[RequestCodec] | RequestCodec
