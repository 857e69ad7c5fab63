"""`MLModel`, the class that every model is a subclass of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ts.mlserver.codecs import (
    InputCodecLike,
    RequestCodecLike,
    decode_inference_request,
    decode_request_input,
    encode_inference_response,
    encode_response_output,
    get_decoded,
    has_decoded,
)
from ts.mlserver.codecs.errors import CodecNotFound
from ts.mlserver.settings import ModelSettings
from ts.mlserver.types import (
    InferenceRequest,
    InferenceResponse,
    MetadataModelResponse,
    MetadataTensor,
    Parameters,
    RequestInput,
    RequestOutput,
    ResponseOutput,
)


def _by_name(tensors: list[MetadataTensor] | None) -> dict[str, MetadataTensor]:
    return {tensor.name: tensor for tensor in tensors or ()}


class MLModel:
    """A model. Subclasses override `load`, and `predict` or `predict_stream` or both.

    Args:
        settings: What ``model-settings.json`` says.

    Attributes:
        ready: Whether requests are answered; what `load` returned.
    """

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._inputs_index = _by_name(settings.inputs)
        self._outputs_index = _by_name(settings.outputs)
        self.ready = False

    async def load(self) -> bool:
        """Load what the model needs, once per worker; return whether it is ready."""
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        raise NotImplementedError("predict() method not implemented")

    async def predict_stream(self, payloads: AsyncIterator[InferenceRequest]) -> AsyncIterator[InferenceResponse]:
        """Answer a stream of requests with a stream of responses; there need not be as many of one as of the other."""
        yield await self.predict(await anext(payloads))

    async def unload(self) -> bool:
        """Let go of what the model holds; return whether that went well."""
        return True

    @property
    def name(self) -> str:
        """The model's name."""
        return self._settings.name

    @property
    def version(self) -> str | None:
        """The model's version, from its settings."""
        return self._settings.version

    @property
    def settings(self) -> ModelSettings:
        """The model's settings."""
        return self._settings

    @property
    def inputs(self) -> list[MetadataTensor] | None:
        """The inputs that the model expects; `load` may set them."""
        return self._settings.inputs

    @inputs.setter
    def inputs(self, value: list[MetadataTensor]) -> None:
        self._settings.inputs = value
        self._inputs_index = _by_name(value)

    @property
    def outputs(self) -> list[MetadataTensor] | None:
        """The outputs that the model gives; `load` may set them."""
        return self._settings.outputs

    @outputs.setter
    def outputs(self, value: list[MetadataTensor]) -> None:
        self._settings.outputs = value
        self._outputs_index = _by_name(value)

    def decode(self, request_input: RequestInput, default_codec: InputCodecLike | None = None) -> Any:
        """Decode an input by its content type, else by the one of the model's metadata, else by ``default_codec``.

        Where there is none of them, or the content type is unknown, the data are returned as they are.
        """
        decode_request_input(request_input, self._inputs_index)
        if has_decoded(request_input):
            return get_decoded(request_input)
        return default_codec.decode_input(request_input) if default_codec else request_input.data

    def decode_request(self, inference_request: InferenceRequest, default_codec: RequestCodecLike | None = None) -> Any:
        """Decode a request by its content type, else by the one of the model's settings, else by ``default_codec``.

        Where there is none of them, or the content type is unknown, the request is returned, its inputs decoded.
        """
        decode_inference_request(inference_request, self._settings, self._inputs_index)
        if has_decoded(inference_request):
            return get_decoded(inference_request)
        return default_codec.decode_request(inference_request) if default_codec else inference_request

    def encode_response(self, payload: Any, default_codec: RequestCodecLike | None = None) -> InferenceResponse:
        """Make a response of a value, with the first request codec that can; else with ``default_codec``.

        Raises:
            CodecNotFound: No codec can.
        """
        response = encode_inference_response(payload, self._settings)
        if response:
            return response
        if default_codec:
            return default_codec.encode_response(self.name, payload, self.version)
        raise CodecNotFound(payload_type=str(type(payload)), is_request=True)

    def encode(
        self, payload: Any, request_output: RequestOutput, default_codec: InputCodecLike | None = None
    ) -> ResponseOutput:
        """Make an output of a value: by the content type of the requested output, else by the one of the model's
        metadata, else with the first codec that can, else with ``default_codec``.

        Raises:
            CodecNotFound: There is none of them.
        """
        output = encode_response_output(payload, request_output, self._outputs_index)
        if output:
            return output
        if default_codec:
            return default_codec.encode_output(request_output.name, payload)
        raise CodecNotFound(name=request_output.name)

    async def metadata(self) -> MetadataModelResponse:
        """Return what the model says about itself."""
        settings = self._settings
        metadata = MetadataModelResponse(
            name=self.name,
            platform=settings.platform,
            versions=settings.versions,
            inputs=settings.inputs,
            outputs=settings.outputs,
        )
        if settings.parameters:
            metadata.parameters = Parameters(content_type=settings.parameters.content_type)
        return metadata
