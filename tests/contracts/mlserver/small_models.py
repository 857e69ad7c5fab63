"""Small models, and how they answer."""

from typing import Any

from mlserver import MLModel, types

InferenceRequest, InferenceResponse, ResponseOutput = (
    types.InferenceRequest,
    types.InferenceResponse,
    types.ResponseOutput,
)


def respond(model: MLModel, data: list[Any], **members: Any) -> InferenceResponse:
    output = ResponseOutput(name="out", shape=[len(data)], datatype="FP32", data=data)
    return InferenceResponse(model_name=model.name, outputs=[output], **members)


def say(model: MLModel, *texts: str) -> InferenceResponse:
    output = ResponseOutput(name="out", shape=[len(texts)], datatype="BYTES", data=list(texts))
    return InferenceResponse(model_name=model.name, outputs=[output])


class Double(MLModel):
    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        return respond(self, [2 * value for value in payload.inputs[0].data])
