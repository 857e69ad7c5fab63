"""What models in these tests declare, and how they answer."""

from tests.endpoints.fake_serving import Submitted

from torchserve_py.base.causes import Cause

INFER = "/v2/models/noop/infer"
INPUTS = [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]


def fails_with(cause: Cause):
    return lambda call: call.fail(cause)


def stream_of(*bodies: bytes, error: str | None = None):
    def behave(call: Submitted) -> None:
        for body in bodies:
            call.part(body, more=True)
        call.part(error=error, status=200 if error is None else 500)

    return behave
