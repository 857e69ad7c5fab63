"""Routes that models declare."""

import gzip
import zlib
from dataclasses import replace

import pytest
from tests.endpoints.fake_serving import FakeModel, FakeServing

from torchserve_py.apis.openai.openai_keys import OpenAIKeys
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from ts.protocol.messages import CUSTOM


async def test_a_models_own_route(start):
    model = FakeModel()
    model.contract = "mlserver"
    model.declared = {"routes": [["/custom/{item}", ["POST"], "answer_it"], ["/v2/mine", ["GET"], "mine"]]}
    serving = await start(FakeServing([model]))
    answer = await serving.request("POST", "/custom/a%20b?x=1", data=b"hello")
    assert (answer.status, answer.body) == (200, b"hello")
    [call] = model.calls
    assert call.protocol == CUSTOM
    told = {name: value for name, value in call.header_dict.items() if name.startswith(":")}
    assert told.pop(":authority")
    assert told.pop(":client").startswith("127.0.0.1:")
    assert told == {":method": "POST", ":path": "/custom/a%20b?x=1", ":scheme": "http", ":endpoint": "answer_it"}
    assert (await serving.request("GET", "/v2/mine")).status == 200
    answer = await serving.request("GET", "/custom/1")
    assert (answer.status, answer.headers["allow"], answer.json()) == (405, "POST", {"error": "Method Not Allowed"})
    assert (await serving.request("POST", "/custom/1/2")).status == 404


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP", "deflate"])
async def test_a_models_own_route_gets_bodies_of_gzip_decompressed_under_each_of_its_names(start, encoding):
    model = FakeModel()
    model.contract = "mlserver"
    model.declared = {"routes": [["/custom", ["POST"], "answer_it"]]}
    serving = await start(FakeServing([model]))
    sent = zlib.compress(b"hello") if encoding == "deflate" else gzip.compress(b"hello")
    await serving.request("POST", "/custom", data=sent, headers={"Content-Encoding": encoding})
    assert model.calls[0].body == (sent if encoding == "deflate" else b"hello")


async def test_a_models_own_route_wants_a_token(start):
    model = FakeModel()
    model.contract = "mlserver"
    model.declared = {"routes": [["/custom", ["GET"], "it"]]}
    serving = await start(FakeServing([model]), disable_token_authorization=False)
    assert (await serving.request("GET", "/custom")).status == 401
    assert not model.calls


def declaring(name: str, *routes: list[object]) -> FakeModel:
    """A model with routes of its own, which answers with its name."""
    model = FakeModel(name)
    model.contract = "mlserver"
    model.declared = {"routes": list(routes)}
    model.behave = lambda call: call.part(name.encode())
    return model


OWN = (["/invocations", ["POST"], "invoke"], ["/ping", ["GET"], "ping"])


async def test_a_model_has_the_servers_paths_that_it_alone_declares(start):
    other = FakeModel("other")
    other.behave = lambda call: call.part(b"by the server")
    serving = await start(FakeServing([declaring("mine", *OWN), other]))
    assert (await serving.request("POST", "/invocations")).body == b"mine"
    assert (await serving.request("GET", "/ping")).body == b"mine"
    assert (await serving.request("POST", "/invocations?model_name=mine")).body == b"mine"
    assert (await serving.request("POST", "/invocations?model_name=other")).body == b"by the server"
    answer = await serving.request("PUT", "/invocations?model_name=other")
    assert (answer.status, answer.body) == (200, b"by the server")


CHAT = "/v1/chat/completions"


async def test_a_model_may_declare_the_root_and_openais_paths(start):
    serving = await start(FakeServing([declaring("mine", ["/", ["POST"], "detect"], [CHAT, ["POST"], "chat"])]))
    assert (await serving.request("POST", "/?a=1")).body == b"mine"
    assert (await serving.request("GET", "/")).json() == {"status": "alive"}
    assert (await serving.request("POST", CHAT, data=b'{"model": "x"}')).body == b"mine"
    assert (await serving.request("POST", "/v1/embeddings", data=b"{}")).status == 404


async def test_the_root_stays_open_while_a_model_has_other_paths(start):
    models = FakeServing([declaring("mine", ["/custom", ["GET"], "it"], ["/", ["POST"], "detect"])])
    serving = await start(models, disable_token_authorization=False)
    assert (await serving.request("GET", "/")).json() == {"status": "alive"}
    assert (await serving.request("OPTIONS", "/")).json()["openapi"]
    assert (await serving.request("POST", "/")).status == 401


async def test_openais_paths_are_those_of_a_model_that_declares_openais_interface(start):
    other = FakeModel("other")
    other.config = replace(other.config, plugin_keys=PluginKeys((OpenAIKeys(openai=True),)))
    other.behave = lambda call: call.part(b"by the server")
    serving = await start(FakeServing([declaring("mine", [CHAT, ["POST"], "chat"]), other]))
    assert (await serving.request("POST", CHAT, data=b'{"model": "other"}')).body == b"by the server"


async def test_several_models_that_declare_a_path_of_the_server_are_told_apart_by_name(start):
    serving = await start(FakeServing([declaring("a", *OWN), declaring("b", *OWN)]))
    assert (await serving.request("POST", "/invocations?model_name=b")).body == b"b"
    answer = await serving.request("POST", "/invocations")
    assert (answer.status, answer.json()) == (
        400,
        {"error": "Several models have this path (a, b): name one of them in the query, as in ?model_name=a."},
    )
    assert (await serving.request("GET", "/ping")).json() == {"status": "Healthy"}


async def test_several_models_with_a_path_of_their_own_are_told_apart_by_name(start):
    route = ["/mine/{x}", ["POST"], "it"]
    serving = await start(FakeServing([declaring("a", route), declaring("b", route)]))
    assert (await serving.request("POST", "/mine/1?model_name=b")).body == b"b"
    for query in ("", "?model_name=c"):
        answer = await serving.request("POST", f"/mine/1{query}")
        assert (answer.status, "(a, b)" in answer.json()["error"]) == (400, True)


async def test_no_model_gets_what_is_asked_of_another(start):
    paths = ["/predictions/noop", "/v2/models/noop/infer", "/v2/models/noop", "/ready", "/live", "/{x}/predict"]
    thief = declaring("thief", *([path, ["GET", "POST"], "steal"] for path in paths))
    serving = await start(FakeServing([FakeModel("noop"), thief]))
    for path in ("/predictions/noop", "/v2/models/noop/infer", "/noop/predict"):
        await serving.request("POST", path, data=b'{"inputs": []}')
    for path in ("/v2/models/noop", "/ready", "/live"):
        await serving.request("GET", path)
    assert thief.calls == []


@pytest.mark.parametrize("declared", [5, "x", [5], [["/{x", ["GET"], "f"]], [["/mine", ["GET"], "f"], None]])
async def test_routes_that_make_no_sense_leave_others_alone(start, declared, caplog):
    broken = declaring("broken")
    broken.declared = {"routes": declared}
    serving = await start(FakeServing([broken, declaring("whole", ["/whole", ["GET"], "f"])]))
    for _ in range(3):
        assert (await serving.request("GET", "/whole")).body == b"whole"
        assert (await serving.request("GET", "/mine")).status == 404
    warnings = [each for each in caplog.records if "broken" in each.getMessage()]
    assert len(warnings) == 1
