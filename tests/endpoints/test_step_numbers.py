"""What a request may say of which step of a sequence it is."""

import pytest
from tests.endpoints.fake_serving import FakeModel, FakeServing

STEP, TOKEN = "ts_request_step", "ts_request_sequence_token"


@pytest.fixture
async def stateful(start):
    return await start(FakeServing([FakeModel("stateful", stateful=True)]))


async def post(serving, sequence_id="s", **headers):
    sent = {"ts_request_sequence_id": sequence_id, **headers}
    return await serving.request("POST", "/predictions/stateful", data=b"1", headers=sent)


async def test_number_and_token_reach_the_worker_and_the_scheduler(stateful):
    await post(stateful, **{STEP: "9223372036854775807", TOKEN: "a token"})
    call = stateful.registry.model.calls[0]
    assert (call.header_dict[STEP], call.header_dict[TOKEN]) == ("9223372036854775807", "a token")
    assert (call.step, call.token) == (2**63 - 1, "a token")


@pytest.mark.parametrize("number", ["0", "-1", "+1", "1.0", "one", "", "٣", "9223372036854775808", "9" * 5000, "1_0"])
async def test_what_is_not_the_number_of_a_step_is_refused_with_what_would_be(stateful, number):
    answer = await post(stateful, **{STEP: number.encode().decode("latin-1")})
    assert answer.status == 400
    message = answer.json()["message"]
    assert "is not the number of a step; steps are numbered from 1, up to 9223372036854775807" in message
    assert len(message) < 300
    assert not stateful.registry.model.calls


@pytest.mark.parametrize("token", ["", "x" * 201, "a\tb"])
async def test_what_is_not_a_token_is_refused(stateful, token):
    answer = await post(stateful, **{TOKEN: token})
    assert answer.status == 400
    assert "is not a token; use 1 to 200 printable characters" in answer.json()["message"]


async def test_only_step_1_has_a_start_marker(stateful):
    assert (await post(stateful, **{STEP: "1", "ts_request_sequence_start": "true"})).status == 200
    answer = await post(stateful, **{STEP: "2", "ts_request_sequence_start": "true"})
    assert answer.status == 400
    assert "which only step 1 can have" in answer.json()["message"]


@pytest.mark.parametrize("headers", [{}, {STEP: "2"}, {TOKEN: "t", "ts_request_sequence_start": "true"}])
async def test_the_sequence_of_a_live_session_takes_no_steps_of_others(stateful, headers):
    answer = await post(stateful, "live-0123", **headers)
    assert answer.status == 403
    assert "is the id of a live session" in answer.json()["message"]
    assert (await post(stateful, "live-0123", **{TOKEN: "t", STEP: "2"})).status == 200


@pytest.mark.parametrize("headers", [{STEP: "1"}, {STEP: "2"}, {TOKEN: "t"}, {STEP: "1", TOKEN: "t"}])
async def test_who_numbers_steps_names_the_sequence(stateful, headers):
    """Without an id each copy of the request would be the first step of another sequence."""
    answer = await post(stateful, "", **headers)
    assert answer.status == 400
    assert "Header ts_request_sequence_id is missing" in answer.json()["message"]
    assert not stateful.registry.model.calls
