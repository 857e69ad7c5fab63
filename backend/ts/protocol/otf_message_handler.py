"""The old place of `ts.handler_utils.utils.send_intermediate_predict_response`, which older handlers import."""

from collections.abc import Mapping
from typing import Any


def send_intermediate_predict_response(
    ret: Any, req_id_map: Mapping[int, str], message: str, code: int, context: Any
) -> None:
    """Send one part of every row's response; see `ts.handler_utils.utils`."""
    # The protocol package must not depend on the worker, which depends on it.
    from ts.handler_utils.utils import send_intermediate_predict_response as send

    send(ret, req_id_map, message, code, context)
