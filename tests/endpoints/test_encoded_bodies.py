"""Compressed bodies: every endpoint whose bodies are parsed undoes their encoding, and refuses the same ones."""

import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from backports import zstd
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing

from torchserve_py.apis.openai.openai_keys import OpenAIKeys
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys

Pack = Callable[[bytes], bytes]
#: A frame of zstd with data for others (RFC 8878, 3.1.2).
SKIPPED = bytes.fromhex("502a4d18 03000000 616263")
BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "hello"}], "prompt": "p", "input": "i"}
).encode()
PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models/m:predict",
    "/v1/models/m:explain",
    "/v2/models/m/infer",
    "/v2/models/m/generate",
)
PACKED: tuple[tuple[str, Pack], ...] = (
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", lambda body: zlib.compress(body)[2:-4]),
    ("zstd", zstd.compress),
    ("ZSTD", zstd.compress),
    ("gzip", lambda body: gzip.compress(body[:3]) + gzip.compress(b"") + gzip.compress(body[3:])),
    ("zstd", lambda body: SKIPPED + zstd.compress(body[:3]) + SKIPPED + zstd.compress(body[3:])),
)


@pytest.fixture
async def serving(start: Start) -> OpenEndpoints:
    model = FakeModel("m")
    keys = OpenAIKeys.model_validate({"openai": True})
    model.config = replace(model.config, plugin_keys=PluginKeys((keys,)))
    return await start(FakeServing([model]), max_request_size=100_000)


@pytest.mark.parametrize("path", PATHS)
async def test_the_model_gets_the_body_without_its_encoding(serving: OpenEndpoints, path: str) -> None:
    for encoding, pack in PACKED:
        answer = await serving.request("POST", path, data=pack(BODY), headers={"Content-Encoding": encoding})
        assert answer.status == 200, (encoding, answer.body)
        call = serving.registry.model.calls.pop()
        assert call.body == BODY
        assert not {"content-encoding", "content-length"} & {name.lower() for name in call.header_dict}


@pytest.mark.parametrize("path", PATHS)
async def test_every_endpoint_refuses_the_same_bodies(serving: OpenEndpoints, path: str) -> None:
    refused: tuple[tuple[str, bytes, int], ...] = (
        ("br", BODY, 415),
        ("gzip, zstd", BODY, 415),
        ("zstd", BODY, 400),
        ("zstd", zstd.compress(BODY)[:-1], 400),
        ("zstd", zstd.compress(b" " * 100_001), 413),
        ("gzip", gzip.compress(b" " * 100_001), 413),
        ("gzip", gzip.compress(b" " * 60_000) * 2, 413),
        ("gzip", gzip.compress(BODY) * 2 + b"x", 400),
        ("gzip", gzip.compress(BODY) + gzip.compress(BODY)[:-1], 400),
        ("deflate", zlib.compress(BODY) * 2, 400),
        ("zstd", zstd.compress(BODY) * 2 + b"x", 400),
    )
    for encoding, body, status in refused:
        answer = await serving.request("POST", path, data=body, headers={"Content-Encoding": encoding})
        assert answer.status == status, (encoding, answer.body)
        if status == 415:
            assert answer.headers["Accept-Encoding"] == "gzip, deflate, zstd"
    assert serving.registry.model.calls == []


@pytest.mark.parametrize("contract", ["truss", "sagemaker"])
@pytest.mark.parametrize("path", ["/predictions/m", "/m/predict", "/models/m/invoke", "/invocations?model_name=m"])
async def test_only_handlers_undo_encodings_themselves(start: Start, contract: str, path: str) -> None:
    model = FakeModel("m")
    model.contract = contract
    model.behave = lambda call: call.part(b"ok")
    serving = await start(FakeServing([model]))
    for encoding, pack in PACKED:
        answer = await serving.request("POST", path, data=pack(BODY), headers={"Content-Encoding": encoding})
        assert answer.status == 200, (encoding, answer.body)
        call = model.calls.pop()
        assert (call.body if isinstance(call.body, bytes) else call.body[-1][2]) == BODY
        assert "content-encoding" not in {name.lower() for name in call.header_dict}
    answer = await serving.request("POST", path, data=BODY, headers={"Content-Encoding": "br"})
    assert answer.status == 415


async def test_torchserves_paths_pass_bodies_on_as_they_were_sent(serving: OpenEndpoints) -> None:
    packed = gzip.compress(BODY)
    for path in ("/predictions/m", "/explanations/m/1.0", "/m/predict", "/models/m/invoke"):
        answer = await serving.request("POST", path, data=packed, headers={"Content-Encoding": "gzip"})
        assert answer.status == 200, path
        call = serving.registry.model.calls.pop()
        assert (call.body, call.header_dict["Content-Encoding"]) == (packed, "gzip")
