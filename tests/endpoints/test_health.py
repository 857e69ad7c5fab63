"""Probes."""

from tests.endpoints.fake_serving import worker_status

from torchserve_py.base.settings.model_spec import ModelSpec
from torchserve_py.core.serving.serving import AwaitedWorkflow


async def test_ping(serving):
    answer = await serving.request("GET", "/ping")
    assert (answer.status, answer.body) == (200, b'{\n  "status": "Healthy"\n}\n')
    assert answer.headers["content-type"] == "application/json"
    serving.registry.is_healthy = False
    answer = await serving.request("GET", "/ping")
    assert (answer.status, answer.body) == (500, b'{\n  "status": "Unhealthy"\n}\n')
    assert serving.metrics.counts == (1, 0, 1)


async def test_live_whatever_the_models_do(serving):
    serving.registry.is_healthy = serving.registry.is_startup_ready = False
    serving.endpoints.context.start_draining()
    assert (await serving.request("GET", "/live")).status == 200


async def test_ready_when_every_start_up_model_is(serving):
    model = serving.registry.model
    model.loaded_at_startup, model.workers = True, []
    answer = await serving.request("GET", "/ready")
    assert answer.status == 503
    reason = 'The start-up model "noop" (version 1.0) does not have its minimum of workers yet: 0 of 1 are ready.'
    assert answer.json()["reasons"] == [reason]
    model.load_failure = "ValueError: /srv/private"
    answer = await serving.request("GET", "/ready")
    assert answer.json()["reasons"] == [f"{reason} They cannot load it; the log says why."]
    model.workers = [worker_status()]
    assert (await serving.request("GET", "/ready")).json() == {"status": "Ready"}


async def test_not_ready_when_a_start_up_model_could_not_be_loaded(serving):
    serving.registry.is_startup_ready = False
    serving.registry.not_loaded = [
        ModelSpec("a", "/srv/private/x.mar"),
        ModelSpec(None, "https://h/y.mar?token=secret"),
    ]
    answer = await serving.request("GET", "/ready")
    assert answer.status == 503
    assert answer.json()["reasons"] == [
        f'The start-up model "{name}" could not be loaded; the log says why.' for name in ("a", "y")
    ]


async def test_not_ready_until_every_start_up_workflow_is_registered(serving):
    serving.registry.awaited_workflows = [AwaitedWorkflow("look", failed=False), AwaitedWorkflow("hear", failed=True)]
    answer = await serving.request("GET", "/ready")
    assert answer.status == 503
    assert answer.json()["reasons"] == [
        'The start-up workflow "look" is not registered yet.',
        'The start-up workflow "hear" could not be registered; the log says why.',
    ]


async def test_not_ready_while_shutting_down(serving):
    serving.endpoints.context.start_draining()
    answer = await serving.request("GET", "/ready")
    assert answer.status == 503
    assert answer.json()["reasons"] == ["The server is shutting down."]


async def test_a_server_that_leaves_is_not_ready_and_serves_as_ever(start):
    serving = await start(drain_delay=7)
    serving.endpoints.context.drain = serving.endpoints.context.start_leaving
    asked = await serving.request("POST", "/drain", endpoint="management")
    assert (asked.status, "7 s" in asked.json()["status"]) == (202, True)
    for path in ("/ready", "/v2/health/ready"):
        assert (await serving.request("GET", path)).status != 200
    assert (await serving.request("POST", "/predictions/noop", data=b"x")).status == 200
    assert not serving.endpoints.context.is_draining


async def test_draining_needs_the_management_key(start):
    serving = await start(disable_token_authorization=False)
    assert (await serving.request("POST", "/drain", endpoint="management")).status == 400


async def test_longer_paths_are_unknown(serving):
    for path in ("/ping/x", "/live/x", "/ready/x"):
        assert (await serving.request("GET", path)).status == 404
