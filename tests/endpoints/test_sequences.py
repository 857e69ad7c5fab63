"""Which sequence a request belongs to, and how the client learns it."""

import json
import re
from pathlib import Path

import pytest
from tests.endpoints.fake_serving import FakeModel, FakeServing
from tests.endpoints.fakes import make_settings

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import SequenceRequest
from torchserve_py.endpoints.failures import EndpointError
from torchserve_py.endpoints.sequences import MAX_ID_LENGTH, SequenceHeaders
from torchserve_py.net.http1.parser import Headers

ID = "ts_request_sequence_id"
START = "ts_request_sequence_start"
END = "ts_request_sequence_end"
STEP = "ts_request_step"
TOKEN = "ts_request_sequence_token"
REQUEST = "ts_request_id"
GENERATED = re.compile(r"ts-seq-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.fixture
async def stateful(start):
    return await start(FakeServing([FakeModel("stateful", stateful=True)]))


async def post(serving, headers, path="/predictions/stateful"):
    return await serving.request("POST", path, data=b"1", headers=headers)


async def test_the_clients_id_names_the_sequence_and_comes_back(stateful):
    answer = await post(stateful, {ID: "seq_0"})
    call = stateful.registry.model.calls[0]
    assert (call.sequence_id, call.starts_sequence, call.ends_sequence) == ("seq_0", False, False)
    assert answer.headers[ID] == "seq_0"
    assert START not in call.header_dict


@pytest.mark.parametrize("path", ["/predictions/stateful", "/v2/models/stateful/infer"])
@pytest.mark.parametrize(("name", "values"), [(START, ("true", "false")), (STEP, "12"), (TOKEN, "ab"), (REQUEST, "ab")])
async def test_a_request_that_says_two_things_of_its_step_is_refused(stateful, path, name, values):
    refused = await post(stateful, [(ID, "one"), *[(name, value) for value in values]], path)
    told = f"Header {name} is given more than once, as {values[0]!r} and {values[1]!r}; give it one value."
    assert (refused.status, told in refused.body.decode()) == (400, True)
    assert (await post(stateful, [(ID, "one"), (name, values[0]), (name, values[0])])).status == 200


@pytest.mark.parametrize("path", ["/predictions/stateful", "/v2/models/stateful/infer"])
async def test_a_request_that_names_two_sequences_is_refused(stateful, path):
    refused = await post(stateful, [(ID, "one"), (ID, "two"), (STEP, "1")], path)
    assert refused.status == 400
    assert f"Header {ID} is given more than once, as 'one' and 'two'" in refused.body.decode()
    for headers in ([(ID, "one"), (ID, "one")], [(ID, "one"), ("x-mine", "1"), ("x-mine", "2")]):
        assert (await post(stateful, headers)).status == 200
    assert [call.sequence_id for call in stateful.registry.model.calls] == ["one", "one"]


@pytest.mark.parametrize("headers", [{}, {ID: ""}])
async def test_without_an_id_the_server_makes_one_and_starts_a_sequence(stateful, headers):
    answer = await post(stateful, headers)
    call = stateful.registry.model.calls[0]
    assert GENERATED.fullmatch(call.sequence_id)
    assert call.starts_sequence
    assert answer.headers[ID] == call.sequence_id
    assert (call.header_dict[ID], call.header_dict[START]) == (call.sequence_id, "true")


@pytest.mark.parametrize(("id_name", "unnamed"), [(ID, b""), ("X-Amzn-SageMaker-Session-Id", b"NEW_SESSION")])
def test_each_request_without_an_id_begins_another_sequence_and_each_with_one_continues_it(
    tmp_path: Path, id_name: str, unnamed: bytes
) -> None:
    reader = SequenceHeaders(make_settings(tmp_path, ts_header_key_sequence_id=id_name))
    first, second = (reader.of(Headers({id_name.lower().encode(): unnamed})) for _ in range(2))
    assert first.is_made_up
    assert second.is_made_up
    assert first.id != second.id
    for _ in range(2):
        named = reader.of(Headers({id_name.lower().encode(): b"mine"}))
        assert named == SequenceRequest("mine", False, False, ((id_name, "mine"),))
        with pytest.raises(EndpointError, match="is not a sequence id"):
            reader.of(Headers({id_name.lower().encode(): b"a\x01"}))


async def test_who_names_no_sequence_is_told_in_each_answer_and_once_in_the_log(stateful, caplog):
    answers = [await post(stateful, {}), await post(stateful, {}), await post(stateful, {ID: "mine"})]
    hints = [answer.headers.get("ts-sequence-hint", "") for answer in answers]
    assert [f"send {ID} to continue this one" in hint for hint in hints] == [True, True, False]
    assert caplog.text.count("A request of stateful named no sequence") == 1


@pytest.mark.parametrize(
    ("text", "meaning", "handlers_text"),
    [
        ("true", True, "true"),
        ("TRUE", True, "true"),
        (" True ", True, "true"),
        ("1", True, "true"),
        ("false", False, "false"),
        ("0", False, "false"),
        ("False", False, "false"),
        ("", False, "false"),
    ],
)
async def test_markers(stateful, text, meaning, handlers_text):
    await post(stateful, {ID: "s", START: text, END: text})
    call = stateful.registry.model.calls[0]
    assert (call.starts_sequence, call.ends_sequence) == (meaning, meaning)
    assert (call.header_dict[START], call.header_dict[END]) == (handlers_text, handlers_text)


@pytest.mark.parametrize("name", [START, END])
@pytest.mark.parametrize("text", ["yes", "2", "tru"])
@pytest.mark.parametrize("of_sequence", [{ID: "s"}, {}], ids=["id", "no-id"])
async def test_a_marker_that_is_neither_true_nor_false_is_refused(stateful, name, text, of_sequence):
    answer = await post(stateful, {**of_sequence, name: text})
    assert answer.status == 400
    assert f"Header {name}: '{text}' is neither true nor false; use true or false" in answer.json()["message"]
    assert stateful.registry.model.calls == []


async def test_names_are_matched_without_regard_to_case(stateful):
    await post(stateful, {"Ts_Request_Sequence_Id": "s", "TS_REQUEST_SEQUENCE_END": "true"})
    call = stateful.registry.model.calls[0]
    assert (call.sequence_id, call.ends_sequence) == ("s", True)
    assert (call.header_dict[ID], call.header_dict[END]) == ("s", "true")


async def test_configured_names(start):
    serving = await start(
        FakeServing([FakeModel("stateful", stateful=True)]),
        ts_header_key_sequence_id="X-Session",
        ts_header_key_sequence_start="X-Session-Start",
        ts_header_key_sequence_end="X-Session-End",
    )
    answer = await post(serving, {"x-session": "s", "x-session-end": "true", ID: "ignored"})
    call = serving.registry.model.calls[0]
    assert (call.sequence_id, call.ends_sequence) == ("s", True)
    assert ("X-Session", "s") in call.headers
    assert ("X-Session-End", "true") in call.headers
    assert answer.headers["X-Session"] == "s"


async def test_the_handlers_own_id_header_wins(stateful):
    stateful.registry.model.behave = lambda call: call.part(headers=[(ID.upper(), "other")])
    answer = await post(stateful, {ID: "s"})
    assert answer.headers.getall(ID) == ["other"]


async def test_the_id_comes_back_with_streams(stateful):
    def behave(call):
        call.part(b"1", more=True)
        call.part(b"2")

    stateful.registry.model.behave = behave
    answer = await post(stateful, {ID: "s"})
    assert (answer.body, answer.headers[ID]) == (b"12", "s")


@pytest.mark.parametrize(
    "behave",
    [
        lambda call: call.fail(Cause.sequence_capacity),
        lambda call: call.part(status=503, error="Prediction failed"),
        lambda call: call.part(headers=[("bad name", "x")]),
    ],
)
async def test_the_id_comes_back_with_errors(stateful, behave):
    stateful.registry.model.behave = behave
    answer = await post(stateful, {ID: "s"})
    assert answer.status >= 500
    assert answer.headers[ID] == "s"


@pytest.mark.parametrize("cause", ["sequence_expired", "sequence_lost"])
async def test_a_sequence_that_is_over_is_gone(stateful, cause):
    stateful.registry.model.behave = lambda call: call.fail(Cause(cause))
    answer = await post(stateful, {ID: "s"})
    assert answer.status == 410
    assert answer.headers["ts-error-cause"] == cause
    assert '"s"' in answer.json()["message"]


async def test_an_id_that_is_no_text_is_refused(stateful):
    connection = await stateful.raw(
        b"POST /predictions/stateful HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        + ID.encode()
        + b": \xff\xfe\r\n\r\n"
    )
    assert "400 bad request" in await connection.head()
    assert ID.encode() in await connection.rest()
    assert stateful.registry.model.calls == []


@pytest.mark.parametrize("name", [ID, "ts_request_id"])
async def test_an_id_that_is_too_long_is_refused(stateful, name):
    longest = "x" * MAX_ID_LENGTH
    assert (await post(stateful, {ID: "a", START: "true", name: longest})).status == 200
    answer = await post(stateful, {ID: "a", START: "true", name: f"{longest}x"})
    assert (answer.status, answer.json()["message"]) == (
        400,
        f"Header {name}: an id has up to 1000 characters, this one 1001.",
    )


@pytest.mark.parametrize("sequence_id", ["zz;alice", ";", "alice;"])
async def test_an_id_that_a_handler_would_end_as_several_is_refused(stateful, sequence_id):
    answer = await post(stateful, {ID: sequence_id})
    assert answer.status == 400
    assert f"Header {ID}: '{sequence_id}' is not a sequence id; it must not hold ';'" in answer.json()["message"]
    assert stateful.registry.model.calls == []


@pytest.mark.parametrize("name", [START, END])
async def test_a_mark_that_is_no_text_is_refused(stateful, name):
    head = f"POST /predictions/stateful HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{ID}: s\r\n{name}: "
    connection = await stateful.raw(head.encode() + b"true\xff\r\n\r\n")
    assert "400 bad request" in await connection.head()
    assert f"Header {name}: 'true\\udcff' is neither true nor false" in json.loads(await connection.rest())["message"]
    assert stateful.registry.model.calls == []


async def test_ids_in_utf_8_come_back_as_they_were_sent(stateful):
    answer = await post(stateful, {ID: "Sitzung-ß"})
    assert stateful.registry.model.calls[0].sequence_id == "Sitzung-ß"
    assert answer.headers[ID] == "Sitzung-ß"


async def test_a_model_without_state_has_no_sequences(serving):
    answer = await serving.request("POST", "/predictions/noop", headers={ID: "s"})
    assert serving.registry.model.calls[0].sequence_id is None
    assert ID not in answer.headers
