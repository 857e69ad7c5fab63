"""How requests ended for clients, of which a journal says how they ended for the model."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.tools.replay.conftest import Serve, address
from tests.tools.replay.recorded import recorded, replayed

from torchserve_py.tools.replay.recorded_outcomes import as_answered

STREAM = {"headers": {":endpoint": "infer_stream"}}


@pytest.mark.parametrize("protocol", ["open_inference_rest", "open_inference_grpc"])
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"part_bytes": [5]}, 200),
        ({"part_bytes": [0, 5, 0]}, 200),
        ({"part_bytes": [5, 5]}, 501),
        ({"part_bytes": [5, 5, 0], "failed": True, "status": 500}, 501),
        ({"part_bytes": [0]}, 501),
        ({"part_bytes": [0], "failed": True, "status": 500}, 500),
        ({"part_bytes": [5, 5], **STREAM}, 200),
    ],
)
def test_an_endpoint_with_one_response_refuses_other_numbers(
    protocol: str, changes: dict[str, Any], status: int
) -> None:
    assert as_answered(recorded(protocol=protocol, **changes))["status"] == status
    assert as_answered(recorded(**changes))["status"] == changes.get("status", 200)


@pytest.mark.parametrize(
    ("sent", "differs"),
    [
        (b"ab", ["status broken off became 200"]),
        (b'data: 1\n\ndata: {"error": "out of glue"}\n\n', None),
        (b'data: {"error": "early"}\n\ndata: 1\n\n', ["status broken off became 200"]),
        (None, None),
    ],
)
async def test_an_answer_that_fails_after_it_has_begun(
    sent: bytes | None, differs: list[str] | None, tmp_path: Path, serve: Serve
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if sent is not None:
            return web.Response(body=sent)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"a")
        assert request.transport is not None
        request.transport.close()
        return response

    record = recorded(status=503, failed=True, part_bytes=[1, 0], answer="a")
    report = await replayed(tmp_path, [record], address(await serve(answer)))
    assert [each.what for each in report.differences] == ([differs] if differs else [])
    assert report.equal == (differs is None)
