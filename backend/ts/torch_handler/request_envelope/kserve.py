"""The envelope ``kserve``: KServe's v1 protocol, ``{"instances": […]}`` to ``{"predictions": […]}``.

Where the request asks for an explanation, the answer is ``{"explanations": […]}``. Unlike TorchServe's, it reads every
request of a batch and not only the first, and requests of the v2 protocol as `kservev2` does.
"""

from collections.abc import Sequence
from typing import Any

from ts.torch_handler.request_envelope.base import member
from ts.torch_handler.request_envelope.kservev2 import KServev2Envelope


class KServeEnvelope(KServev2Envelope):
    """Each instance of each request becomes a row; each request gets the predictions for its own."""

    def read_request(self, body: Any, index: int) -> Sequence[Any]:
        return super().read_request(body, index) if self._is_v2(index) else member(body, "instances")

    def write_response(self, results: list[Any], index: int) -> dict[str, Any]:
        if self._is_v2(index):
            return super().write_response(results, index)
        explains = self.context.get_request_header(index, "explain") == "True"
        return {"explanations" if explains else "predictions": results}

    def _is_v2(self, index: int) -> bool:
        return self.context.get_open_inference_request(index) is not None
