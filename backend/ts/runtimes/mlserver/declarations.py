"""What an MLServer model tells the frontend about itself."""

from __future__ import annotations

from typing import Any

from ts.runtimes.mlserver.api import MLModel, types
from ts.runtimes.mlserver.conversion import parameters_of


async def declarations(model: MLModel) -> dict[str, Any]:
    """Return what the model's ``metadata()`` says, and what can be seen from its class and settings."""
    metadata = await model.metadata()
    streams = type(model).predict_stream is not MLModel.predict_stream
    declared: dict[str, Any] = {
        "platform": metadata.platform or "",
        "inputs": [_tensor(tensor) for tensor in metadata.inputs or ()],
        "outputs": [_tensor(tensor) for tensor in metadata.outputs or ()],
        "parameters": parameters_of(metadata),
        "decoupled": streams,
        "streams_in": streams,
        "has_health_check": True,
    }
    settings = model.settings
    if settings.max_batch_size > 1 and settings.max_batch_time > 0 and _have_rows(declared):
        declared["max_batch_size"] = settings.max_batch_size
        declared["max_batch_time"] = settings.max_batch_time
    return declared


def _tensor(tensor: types.MetadataTensor) -> dict[str, Any]:
    datatype = str(getattr(tensor.datatype, "value", tensor.datatype))
    declared = {"name": tensor.name, "datatype": datatype, "shape": list(tensor.shape)}
    parameters = parameters_of(tensor)
    return {**declared, "parameters": parameters} if parameters else declared


def _have_rows(declared: dict[str, Any]) -> bool:
    """Return whether all declared tensors have a first dimension of any size, which the protocol calls a batch."""
    return all(tensor["shape"][:1] == [-1] for tensor in (*declared["inputs"], *declared["outputs"]))
