"""KServe, SageMaker and legacy paths, and which of them take the query for parameters."""

import json
from dataclasses import replace

import pytest
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted
from tests.endpoints.fakes import ANY_PORT
from tests.endpoints.test_http_listeners import free_port

from torchserve_py.apis.open_inference.open_inference_keys import OpenInferenceKeys
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys

MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def form_part(name: str, value: str) -> str:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'


def name_of(model: FakeModel):
    """Behave so that the answer tells which model and version it came from."""

    def behave(call: Submitted) -> None:
        call.part(f"{model.name} {model.version}".encode())

    return behave


def registry(*models: tuple[str, str, bool]) -> FakeServing:
    made = []
    for name, version, at_startup in models:
        model = FakeModel(name, version)
        model.loaded_at_startup = at_startup
        model.behave = name_of(model)
        made.append(model)
    return FakeServing(made)


@pytest.mark.parametrize("method", ["POST", "PUT", "GET"])
@pytest.mark.parametrize(
    ("path", "explain"),
    [
        ("/v1/models/noop:predict", "False"),
        ("/v1/models/noop:explain", "True"),
        ("/v2/models/noop/explain", "True"),
        ("/v2/models/noop/explain/", "True"),
    ],
)
async def test_kserve_paths_serve_the_default_version_and_ignore_the_query(serving, method, path, explain):
    answer = await serving.request(method, f"{path}?a=1", data=b'{"instances": []}', headers={"Explain": "maybe"})
    assert (answer.status, answer.body) == (200, b'{"instances": []}')
    call = serving.registry.model.calls[0]
    assert call.body == b'{"instances": []}'
    assert call.header_dict["explain"] == explain
    assert "url_path" not in call.header_dict
    assert call.by_default


@pytest.mark.parametrize("path", ["/invocations", "/models/noop/invoke", "/noop/predict", "/noop/1.0/predict"])
async def test_the_query_of_sagemakers_and_legacy_paths_becomes_parameters(start, path):
    model = FakeModel()
    model.loaded_at_startup = True
    model.behave = lambda call: call.part(b"ok")
    serving = await start(FakeServing([model]))
    headers = {"Content-Type": "text/plain"}
    answer = await serving.request("POST", f"{path}?a=1&b=x%20y&a=2", data=b"text", headers=headers)
    assert answer.status == 200
    call = model.calls[0]
    assert (call.content_type, call.body) == (
        None,
        [("a", None, "1"), ("b", None, "x y"), ("a", None, "2"), (None, "text/plain", b"text")],
    )
    assert call.header_dict["explain"] == "False"


async def test_without_a_query_the_body_goes_on_as_it_came(serving):
    await serving.request("POST", "/models/noop/invoke", data=b"x", headers={"Content-Type": "image/png"})
    call = serving.registry.model.calls[0]
    assert (call.content_type, call.body) == ("image/png", b"x")


async def test_the_query_of_predictions_is_ignored(serving):
    await serving.request("POST", "/predictions/noop?a=1", data=b"x")
    assert serving.registry.model.calls[0].body == b"x"


async def test_versions_of_legacy_paths(start):
    serving = await start(registry(("m", "1", False), ("m", "2", False)))
    assert (await serving.request("POST", "/m/predict")).body == b"m 1"
    assert (await serving.request("POST", "/m/2/predict")).body == b"m 2"
    assert (await serving.request("POST", "/m/3/predict")).json()["type"] == "ModelVersionNotFoundException"


@pytest.mark.parametrize(
    ("models", "target", "request_", "answered"),
    [
        ([("a", "1", False), ("b", "1", False)], "?model_name=b", {}, b"b 1"),
        ([("a", "1", True), ("b", "1", False)], "?model_name=b", {}, b"b 1"),
        ([("a", "1", False), ("b", "1", True), ("b", "2", True)], "", {}, b"b 1"),
        ([("a", "1", True), ("b", "1", True)], "", {"data": b"x=1&model_name=b", "headers": FORM}, b"b 1"),
        (
            [("a", "1", False), ("b", "1", False)],
            "",
            {"data": form_part("data", "1") + form_part("model_name", "b") + "--b--\r\n", "headers": MULTIPART},
            b"b 1",
        ),
        ([("a", "1", True), ("b", "1", False)], "?model_name=", {}, b"a 1"),
    ],
)
async def test_invocations_find_their_model(start, models, target, request_, answered):
    serving = await start(registry(*models))
    assert (await serving.request("POST", f"/invocations{target}", **request_)).body == answered


async def test_a_form_that_was_read_for_its_model_reaches_the_handler_whole(start):
    models = registry(("a", "1", False), ("b", "1", False))
    serving = await start(models)
    await serving.request("POST", "/invocations", data=b"x=1&model_name=b", headers=FORM)
    call = models.registered[1].calls[0]
    assert (call.content_type, call.body) == (FORM["Content-Type"], b"x=1&model_name=b")


@pytest.mark.parametrize(
    "request_", [{}, {"data": b"model_name=a"}, {"data": b"name=a", "headers": FORM}, {"data": b"", "headers": FORM}]
)
async def test_invocations_without_a_model_are_a_bad_request(start, request_):
    serving = await start(registry(("a", "1", True), ("b", "1", True)))
    request_ = {"headers": {"Content-Type": "text/plain"}, **request_}
    answer = await serving.request("POST", "/invocations", **request_)
    assert (answer.status, answer.json()) == (
        400,
        {"code": 400, "type": "BadRequestException", "message": "Parameter model_name is required."},
    )


async def test_a_broken_form_without_a_model_is_a_bad_request(start):
    serving = await start(registry(("a", "1", True), ("b", "1", True)))
    answer = await serving.request("POST", "/invocations", data=b"broken", headers=MULTIPART)
    assert (answer.status, answer.json()["type"]) == (400, "BadRequestException")
    assert "multipart" in answer.json()["message"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/models/ghost/invoke", "ModelNotFoundException"),
        ("/invocations?model_name=ghost", "ModelNotFoundException"),
        ("/ghost/predict", "ModelNotFoundException"),
        ("/v1/models/noop:predict/more", "ResourceNotFoundException"),
        ("/models/noop", "ResourceNotFoundException"),
        ("/invocations/noop", "ResourceNotFoundException"),
        ("/noop/1.0/2.0/predict", "ResourceNotFoundException"),
        ("/predict", "ResourceNotFoundException"),
    ],
)
async def test_what_is_not_there(serving, path, kind):
    answer = await serving.request("POST", path, data=b"x")
    assert (answer.status, answer.json()["type"]) == (404, kind)


@pytest.mark.parametrize(
    "path", ["/v1/models/ghost:predict", "/v2/models/ghost/explain", "/v1/models/noop:train", "/v1/models/ghost"]
)
async def test_what_is_not_there_in_kserves_words(serving, path):
    answer = await serving.request("GET" if path.endswith("/ghost") else "POST", path, data=b"x")
    assert (answer.status, list(answer.json())) == (404, ["error"])


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v2", {"name": "Torchserve", "extenstion": ["kserve", "kubeflow"]}),
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
    ],
)
async def test_open_inference_endpoints_have_torchserves_answers(start, path, answer):
    serving = await start(ts_open_inference_protocol=True)
    got = await serving.request("GET", path)
    assert got.status == 200
    body = got.json()
    assert next(iter(body)) == next(iter(answer))
    assert answer.items() <= body.items()


async def test_with_the_envelope_kservev2_a_handler_gets_inference_requests_as_in_torchserve(start):
    serving = await start(service_envelope="kservev2")
    assert (await serving.request("POST", "/v2/models/noop/infer", data=b"x")).body == b"x"
    call = serving.registry.model.calls[0]
    assert (call.protocol, call.header_dict["explain"]) == (None, "False")


async def test_with_the_envelope_kservev2_binary_tensors_are_decoded_as_without_it(start):
    serving = await start(service_envelope="kservev2")
    for body, headers in (
        (b'{"inputs": []}\0', {"Inference-Header-Content-Length": "14"}),
        (b'{"inputs": [], "parameters": {"binary_data_output": true}}', {}),
    ):
        await serving.request("POST", "/v2/models/noop/infer", data=body, headers=headers)
        assert serving.registry.model.calls.pop().protocol == "open_inference_rest"


async def test_a_handler_may_get_inference_requests_as_torchserve_gives_them_without_an_envelope(start):
    serving = await start()
    serving.registry.model.config = replace(
        serving.registry.model.config, plugin_keys=PluginKeys((OpenInferenceKeys(openInferenceRows="body"),))
    )
    for path in ("/v2/models/noop/infer", "/v2/models/noop/versions/1.0/infer"):
        assert (await serving.request("POST", path, data=b"x")).body == b"x"
    assert [call.protocol for call in serving.registry.model.calls] == [None, None]


async def test_on_a_shared_port_each_path_wants_its_own_token(start):
    address = replace(ANY_PORT, port=await free_port())
    models = registry(("noop", "1.0", True), ("noop", "2.0", True))
    serving = await start(
        models,
        inference_address=address,
        management_address=address,
        metrics_address=address,
        disable_token_authorization=False,
    )
    inference = ["/predictions/noop/2.0", "/v1/models/noop:predict", "/models/noop/invoke", "/invocations", "/ping"]
    inference.append("/v1/models/noop")
    management = ["/models/noop/2.0", "/models/noop", "/models"]
    from_file = serving.key_file.read_text()
    keys = {kind: json.loads(from_file)[kind]["key"] for kind in ("inference", "management")}
    for paths, right, wrong in ((inference, "inference", "management"), (management, "management", "inference")):
        for path in paths:
            allowed = await serving.request("GET", path, headers={"Authorization": f"Bearer {keys[right]}"})
            refused = await serving.request("GET", path, headers={"Authorization": f"Bearer {keys[wrong]}"})
            assert (path, allowed.status, refused.status) == (path, 200, 400)
    assert (await serving.request("GET", "/metrics")).status == 200
    document = (await serving.request("OPTIONS", "/")).json()
    assert {"/predictions/{model_name}", "/models/{model_name}", "/metrics"} <= set(document["paths"])


#: Of a WebSocket, on a connection that ends with the refusal.
HANDSHAKE = "Upgrade: websocket\r\nConnection: upgrade, close\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n"


@pytest.mark.parametrize(
    ("line", "endpoint", "is_refused"),
    [
        ("GET /sequences/noop?sequence=", "inference", True),
        ("GET /sequences/noop?content_type=", "inference", True),
        ("POST /invocations?x=", "inference", True),
        ("GET /models?limit=1&x=", "management", True),
        ("GET /metrics?name[]=", "metrics", True),
        ("GET /predictions/noop?x=", "inference", False),
    ],
)
@pytest.mark.parametrize(("value", "shown"), [("%ff", b"holds %FF,"), ("%C3%A9%fe", b"holds %FE,")])
async def test_a_query_that_is_not_in_utf8_is_refused(start, line, endpoint, is_refused, value, shown):
    serving = await start(FakeServing([FakeModel(stateful=True)]))
    more = HANDSHAKE.format(24 * "A") if "/sequences" in line else "Connection: close\r\n"
    head = f"{line}{value} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n"
    connection = await serving.raw(head.encode(), endpoint=endpoint)
    answer = await connection.rest()
    assert (answer.startswith(b"HTTP/1.1 400"), shown in answer) == (is_refused, is_refused), answer
    await connection.close()
