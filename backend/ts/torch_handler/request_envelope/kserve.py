"""The envelope ``kserve``: KServe's v1 protocol, ``{"instances": […]}`` to ``{"predictions": […]}``.

Where the request asks for an explanation, the answer is ``{"explanations": […]}``. Unlike TorchServe's, it reads every
request of a batch and not only the first.
"""

from collections.abc import Sequence
from typing import Any

from ts.torch_handler.request_envelope.base import RequestEnvelope, member


class KServeEnvelope(RequestEnvelope):
    """Each instance of each request becomes a row; each request gets the predictions for its own."""

    def read_request(self, body: Any, index: int) -> Sequence[Any]:
        return member(body, "instances")

    def write_response(self, results: list[Any], index: int) -> dict[str, list[Any]]:
        explains = self.context.get_request_header(index, "explain") == "True"
        return {"explanations" if explains else "predictions": results}
