"""The envelope ``kservev2``: KServe's v2 protocol (the Open Inference Protocol), tensors in JSON.

Each input tensor of a request becomes a row of the handler: a dict with its ``name``, ``datatype``, ``shape`` and
``data``. Each of the results for them becomes an output tensor with the name of the input at its place. Unlike
TorchServe's envelope, it reads every request of a batch and not only the first, and keeps the shapes of results.
"""

from collections.abc import Sequence
from typing import Any

from ts.torch_handler.request_envelope.base import RequestEnvelope, member
from ts.torch_handler.request_envelope.envelope_tensors import read_tensor, write_tensor


class KServev2Envelope(RequestEnvelope):
    """Reads ``inputs``, writes ``outputs`` with the id, the model's name and its version."""

    def __init__(self, handle_fn: Any) -> None:
        super().__init__(handle_fn)
        #: By number of the request: its id, and the names of its inputs.
        self._requests: dict[int, tuple[str, list[str]]] = {}

    def parse_input(self, data: list[dict[str, Any]]) -> list[Any]:
        self._requests = {}
        return super().parse_input(data)

    def read_request(self, body: Any, index: int) -> Sequence[Any]:
        inputs = member(body, "inputs")
        if not inputs:
            raise ValueError('The list "inputs" is empty; it must hold at least one tensor.')
        tensors = [read_tensor(each) for each in inputs]
        names = [str(each.get("name", f"input-{number}")) for number, each in enumerate(inputs)]
        self._requests[index] = (str(body.get("id") or self.context.get_request_id(index)), names)
        return tensors

    def write_response(self, results: list[Any], index: int) -> dict[str, Any]:
        request_id, names = self._requests[index]
        names += [f"output-{number}" for number in range(len(names), len(results))]
        return {
            "id": request_id,
            "model_name": self.context.model_name,
            "model_version": self.context.system_properties["model_version"],
            "outputs": [_output(name, result) for name, result in zip(names, results, strict=False)],
        }


def _output(name: str, result: Any) -> dict[str, Any]:
    """Return a result as an output tensor; dicts stay as they are, as in TorchServe."""
    elements = result if isinstance(result, list) else [result]
    if elements and all(isinstance(each, dict) for each in elements):
        return {"name": name, "datatype": "BYTES", "data": elements, "shape": [len(elements)]}
    return write_tensor(name, result)
