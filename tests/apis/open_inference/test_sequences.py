"""Which sequence a request belongs to."""

import json

import pytest
from tests.apis.open_inference.behaviours import INFER
from tests.endpoints.fake_serving import FakeModel, FakeServing


def sequence_body(**parameters: object) -> bytes:
    return json.dumps({"inputs": [], "parameters": parameters}).encode()


async def test_parameters_say_which_sequence_a_request_belongs_to(start):
    model = FakeModel(stateful=True)
    serving = await start(FakeServing([model]))
    await serving.request("POST", INFER, data=sequence_body(sequence_id=7, sequence_start=True))
    await serving.request("POST", INFER, data=sequence_body(sequence_id=7, sequence_end=True))
    assert [(call.sequence_id, call.starts_sequence, call.ends_sequence) for call in model.calls] == [
        ("7", True, False),
        ("7", False, True),
    ]
    assert model.calls[0].header_dict["ts_request_sequence_id"] == "7"


async def test_a_sequence_may_be_told_before_binary_tensors(start):
    model = FakeModel(stateful=True)
    serving = await start(FakeServing([model]))
    text = sequence_body(sequence_id="a", sequence_start=True)
    headers = {"Inference-Header-Content-Length": str(len(text))}
    await serving.request("POST", INFER, data=text + b"\xff\xff", headers=headers)
    assert model.calls[0].sequence_id == "a"


async def test_torchserves_headers_are_good_for_sequences_too(start):
    model = FakeModel(stateful=True)
    serving = await start(FakeServing([model]))
    await serving.request("POST", INFER, data=b'{"inputs": []}', headers={"ts_request_sequence_id": "mine"})
    assert model.calls[0].sequence_id == "mine"


async def test_a_header_names_the_sequence_and_parameters_say_the_rest(start):
    model = FakeModel(stateful=True)
    serving = await start(FakeServing([model]))
    headers = {"ts_request_sequence_id": "mine", "ts_request_sequence_token": "my token"}
    for more in ({"sequence_start": True, "ts_request_step": 1}, {"sequence_end": True, "ts_request_step": "2"}):
        await serving.request("POST", INFER, data=sequence_body(**more), headers=headers)
    said = [(each.sequence_id, each.starts_sequence, each.ends_sequence, each.step, each.token) for each in model.calls]
    assert said == [("mine", True, False, 1, "my token"), ("mine", False, True, 2, "my token")]
    twice = [("ts_request_sequence_id", "mine"), ("ts_request_sequence_id", "yours")]
    refused = await serving.request("POST", INFER, data=sequence_body(sequence_end=True), headers=twice)
    assert (refused.status, "ts_request_sequence_id is given more than once" in refused.body.decode()) == (400, True)


@pytest.mark.parametrize(
    ("parameter", "headers"),
    [
        ("2", [("ts_request_step", "3")]),
        (None, [("ts_request_step", "2"), ("ts_request_step", "3")]),
    ],
)
async def test_a_request_that_says_it_is_two_steps_is_refused(start, parameter, headers):
    model = FakeModel(stateful=True)
    serving = await start(FakeServing([model]))
    body = sequence_body(sequence_id=7, ts_request_step=parameter)
    refused = await serving.request("POST", INFER, data=body, headers=headers)
    assert refused.status == 400
    assert "ts_request_step is given more than once, as '2' and '3'" in refused.body.decode()
    same = [("ts_request_step", "2"), ("ts_request_sequence_token", "mine")]
    await serving.request("POST", INFER, data=sequence_body(sequence_id=7, ts_request_step=2), headers=same)
    assert [(call.step, call.token) for call in model.calls] == [(2, "mine")]


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"sequence_id": 0},
        {"sequence_id": 7},
        {"sequence_id": 1.5},
        {"sequence_id": 7, "sequence_start": 1},
        {"sequence_id": 7, "ts_request_step": 10**400},
        {"sequence_id": 7, "ts_request_step": 1.0},
    ],
)
async def test_sequences_that_cannot_be(start, parameters):
    model = FakeModel(stateful=True)
    serving = await start(FakeServing([model]))
    answer = await serving.request("POST", INFER, data=sequence_body(**parameters))
    assert (answer.status, set(answer.json())) == (400, {"error"})
    assert not model.calls
