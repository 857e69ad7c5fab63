"""Which codec decodes or encodes what, by content type and metadata; and where decoded values are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pydantic import ValidationError

from ts.mlserver.codecs.base import InputCodecLike, RequestCodec, RequestCodecLike
from ts.mlserver.codecs.errors import CodecError
from ts.mlserver.codecs.registry import (
    find_input_codec,
    find_input_codec_by_payload,
    find_request_codec,
    find_request_codec_by_payload,
)
from ts.mlserver.settings import ModelSettings
from ts.mlserver.types import (
    InferenceRequest,
    InferenceResponse,
    MetadataTensor,
    Parameters,
    RequestInput,
    RequestOutput,
    ResponseOutput,
)

InputOrOutput = RequestInput | ResponseOutput
Codec = InputCodecLike | RequestCodecLike
Parametrised = InferenceRequest | RequestInput | RequestOutput | ResponseOutput | InferenceResponse
Tagged = MetadataTensor | ModelSettings

#: The attribute of `Parameters` that keeps a decoded value.
DecodedParameterName: Final = "_decoded_payload"
DefaultInputPrefix: Final = "input-"
DefaultOutputPrefix: Final = "output-"

_NO_METADATA: Mapping[str, MetadataTensor] = {}


def inject_batch_dimension(shape: list[int]) -> list[int]:
    """Return a shape of two dimensions at least: [N] becomes [N, 1]."""
    return shape if len(shape) > 1 else [*shape, 1]


def encode_response_output(
    payload: Any, request_output: RequestOutput, metadata_outputs: Mapping[str, MetadataTensor] = _NO_METADATA
) -> ResponseOutput | None:
    """Encode a value by the content type of the requested output, else of the metadata, else by what it is.

    None if there is no codec for it.
    """
    content_type = _content_type(request_output, metadata_outputs.get(request_output.name))
    codec = find_input_codec(content_type) if content_type else find_input_codec_by_payload(payload)
    return codec.encode_output(name=request_output.name, payload=payload) if codec else None


def encode_inference_response(payload: Any, model_settings: ModelSettings) -> InferenceResponse | None:
    """Encode a value with the first request codec that can; None if there is none."""
    codec = find_request_codec_by_payload(payload)
    return codec.encode_response(model_settings.name, payload, model_settings.version) if codec else None


def decode_request_input(
    request_input: RequestInput, metadata_inputs: Mapping[str, MetadataTensor] = _NO_METADATA
) -> Any | None:
    """Decode an input by its content type, else by the metadata's, and keep the value with it.

    None if no content type is given, or one that is unknown.
    """
    content_type = _content_type(request_input, metadata_inputs.get(request_input.name))
    codec = find_input_codec(content_type) if content_type else None
    if codec is None:
        return None
    decoded = codec.decode_input(request_input)
    _keep(request_input, decoded)
    return decoded


def decode_inference_request(
    inference_request: InferenceRequest,
    model_settings: ModelSettings | None = None,
    metadata_inputs: Mapping[str, MetadataTensor] = _NO_METADATA,
) -> Any:
    """Decode every input, then the request by its content type, else by the settings', and keep the values with them.

    The request itself is returned if no content type is given for it, or one that is unknown.
    """
    for request_input in inference_request.inputs:
        decode_request_input(request_input, metadata_inputs)
    content_type = _content_type(inference_request, model_settings)
    codec = find_request_codec(content_type) if content_type else None
    if codec is None:
        return inference_request
    decoded = codec.decode_request(inference_request)
    _keep(inference_request, decoded)
    return decoded


def has_decoded(parametrised_obj: Parametrised) -> bool:
    """Return whether a decoded value is kept with it."""
    return bool(parametrised_obj.parameters) and hasattr(parametrised_obj.parameters, DecodedParameterName)


def get_decoded(parametrised_obj: Parametrised) -> Any:
    """Return the decoded value that is kept with it; None if there is none."""
    return getattr(parametrised_obj.parameters, DecodedParameterName, None)


def get_decoded_or_raw(parametrised_obj: Parametrised) -> Any:
    """Return the decoded value that is kept with it; else the data of a tensor, else the object."""
    if has_decoded(parametrised_obj):
        return get_decoded(parametrised_obj)
    return parametrised_obj.data if isinstance(parametrised_obj, InputOrOutput) else parametrised_obj


def as_input(output: ResponseOutput) -> RequestInput:
    """Return an output as an input: codecs encode both alike."""
    return RequestInput.model_construct(
        name=output.name, shape=output.shape, datatype=output.datatype, data=output.data, parameters=output.parameters
    )


def new_output(name: str, shape: list[int], datatype: str, data: Any, content_type: str | None) -> ResponseOutput:
    """Return an output that is marked with a content type.

    Raises:
        CodecError: The parts make no output.
    """
    parameters = Parameters(content_type=content_type) if content_type else None
    try:
        return ResponseOutput(name=name, shape=shape, datatype=datatype, data=data, parameters=parameters)  # type: ignore[arg-type]
    except ValidationError as error:
        raise CodecError(f"the output {name!r}: {error}") from error


def _content_type(tagged: Parametrised, metadata: Tagged | None) -> str | None:
    if tagged.parameters and tagged.parameters.content_type:
        return tagged.parameters.content_type
    return metadata.parameters.content_type if metadata is not None and metadata.parameters else None


def _keep(parametrised_obj: Parametrised, decoded: Any) -> None:
    if not parametrised_obj.parameters:
        parametrised_obj.parameters = Parameters()
    setattr(parametrised_obj.parameters, DecodedParameterName, decoded)


class SingleInputRequestCodec(RequestCodec):
    """A request codec for requests with one input and responses with one output: its value is the whole value."""

    InputCodec: ClassVar[InputCodecLike | None] = None

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """Return whether ``payload`` is of the codec's type."""
        return cls.InputCodec is not None and cls.InputCodec.can_encode(payload)

    @classmethod
    def encode_response(
        cls, model_name: str, payload: Any, model_version: str | None = None, **kwargs: Any
    ) -> InferenceResponse:
        """Make a response with the one output ``output-1``."""
        output = cls._codec().encode_output(f"{DefaultOutputPrefix}1", payload, **kwargs)
        return InferenceResponse(
            model_name=model_name,
            model_version=model_version,
            parameters=Parameters(content_type=cls.ContentType),
            outputs=[output],
        )

    @classmethod
    def decode_response(cls, response: InferenceResponse) -> Any:
        """Return the value of the only output."""
        if len(response.outputs) != 1:
            raise CodecError(
                f"The '{cls.ContentType}' codec only supports a single output tensor "
                f"({len(response.outputs)} were received)"
            )
        (output,) = response.outputs
        if not has_decoded(output):
            _keep(output, cls._codec().decode_output(output))
        return get_decoded(output)

    @classmethod
    def encode_request(cls, payload: Any, **kwargs: Any) -> InferenceRequest:
        """Make a request with the one input ``input-1``."""
        request_input = cls._codec().encode_input(f"{DefaultInputPrefix}1", payload, **kwargs)
        return InferenceRequest(inputs=[request_input], parameters=Parameters(content_type=cls.ContentType))

    @classmethod
    def decode_request(cls, request: InferenceRequest) -> Any:
        """Return the value of the only input."""
        if len(request.inputs) != 1:
            raise CodecError(
                f"The '{cls.ContentType}' codec only supports a single input tensor "
                f"({len(request.inputs)} were received)"
            )
        (request_input,) = request.inputs
        if not has_decoded(request_input):
            _keep(request_input, cls._codec().decode_input(request_input))
        return get_decoded(request_input)

    @classmethod
    def _codec(cls) -> InputCodecLike:
        if cls.InputCodec is None:
            raise NotImplementedError(f"{cls.__name__} names no InputCodec")
        return cls.InputCodec
