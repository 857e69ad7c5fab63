"""Answers with what it gets: at once, or one response for each of 100."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput

RESPONSES = 100


class Echo(MLModel):
    """Every input becomes an output."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """One response."""
        return self._response(payload)

    async def predict_stream(self, payloads: AsyncIterator[InferenceRequest]) -> AsyncIterator[InferenceResponse]:
        """A hundred for the first request."""
        async for payload in payloads:
            for _ in range(RESPONSES):
                yield self._response(payload)

    def _response(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = [
            ResponseOutput(name=each.name, shape=each.shape, datatype=each.datatype, data=each.data)
            for each in payload.inputs
        ]
        return InferenceResponse(id=payload.id, model_name=self.name, model_version=self.version, outputs=outputs)
