"""Sequences of the Open Inference Protocol."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.endpoints.fake_serving import FakeModel, FakeServing
from tests.endpoints.fakes import make_settings

from torchserve_py.apis.open_inference.sequence_parameters import sequence_of
from torchserve_py.core.jobs.call import SequenceRequest
from torchserve_py.endpoints.failures import EndpointError
from torchserve_py.endpoints.sequences import SequenceHeaders

ID = "ts_request_sequence_id"
START = "ts_request_sequence_start"
END = "ts_request_sequence_end"

usable = st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters=";")
ids = st.integers(1, 2**64 - 1) | st.text(usable, min_size=1).filter(lambda text: text == text.strip())


def _sequence(headers, model, parameters):
    return sequence_of(headers, FakeServing([model]), model.served, parameters, {})


@pytest.fixture
def headers(tmp_path):
    return SequenceHeaders(make_settings(tmp_path))


def test_markers_become_headers(headers):
    model = FakeModel(stateful=True)
    sequence = _sequence(headers, model, {"sequence_id": 1001, "sequence_start": True, "sequence_end": False})
    assert sequence == SequenceRequest("1001", True, False, ((ID, "1001"), (START, "true")))
    model.known_sequences.add("1001")
    sequence = _sequence(headers, model, {"sequence_id": 1001, "sequence_start": False, "sequence_end": True})
    assert sequence == SequenceRequest("1001", False, True, ((ID, "1001"), (END, "true")))


@pytest.mark.parametrize("markers", [{}, {"sequence_start": True}, {"sequence_end": True}])
def test_the_sequence_of_a_live_session_takes_no_steps_of_others(headers, markers):
    model = FakeModel(stateful=True)
    model.known_sequences.add("live-0123")
    with pytest.raises(EndpointError, match=r"^'live-0123' is the id of a live session"):
        _sequence(headers, model, {"sequence_id": "live-0123", **markers})


@pytest.mark.parametrize(
    ("word", "starts"), [("true", True), ("TRUE", True), ("1", True), (" false ", False), ("0", False)]
)
def test_markers_have_the_words_of_headers(headers, word, starts):
    model = FakeModel(stateful=True)
    model.known_sequences.add("a")
    assert _sequence(headers, model, {"sequence_id": "a", "sequence_start": word}).starts is starts


@given(ids, ids)
def test_different_ids_stay_different(tmp_path_factory, first, second):
    headers = SequenceHeaders(make_settings(tmp_path_factory.getbasetemp()))
    texts = [
        _sequence(headers, FakeModel(stateful=True), {"sequence_id": each, "sequence_start": True}).id
        for each in (first, second)
    ]
    assert (texts[0] == texts[1]) is (first == second)


def test_a_number_and_a_text_of_its_digits_are_two_sequences(headers):
    found = {
        _sequence(headers, FakeModel(stateful=True), {"sequence_id": each, "sequence_start": True}).id
        for each in (1, "1", '"1"', "one")
    }
    assert found == {"1", '"1"', '""1""', "one"}


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({}, "must specify a non-zero or non-empty correlation ID"),
        ({"sequence_id": 0, "sequence_start": True}, "must specify a non-zero or non-empty correlation ID"),
        ({"sequence_id": "", "sequence_start": True}, "must specify a non-zero or non-empty correlation ID"),
        ({"sequence_id": 1}, "must specify the START flag on the first request of the sequence"),
        ({"sequence_id": "a", "sequence_end": True}, "must specify the START flag"),
        ({"sequence_id": -1, "sequence_start": True}, "-1 is not a sequence id"),
        ({"sequence_id": 2**64, "sequence_start": True}, "is not a sequence id"),
        ({"sequence_id": 1.5, "sequence_start": True}, "1.5 is not a sequence id"),
        ({"sequence_id": True, "sequence_start": True}, "True is not a sequence id"),
        ({"sequence_id": False, "sequence_start": True}, "False is not a sequence id"),
        ({"sequence_id": 1, "sequence_start": 1}, "sequence_start: 1 is neither true nor false"),
        (
            {"sequence_id": 1, "sequence_start": "yes"},
            "sequence_start: 'yes' is neither true nor false; use true or false",
        ),
        ({"sequence_id": 1, "sequence_end": []}, r"sequence_end: \[\] is neither true nor false"),
        ({"sequence_id": "a\n", "sequence_start": True}, "is not a sequence id"),
        ({"sequence_id": "zz;alice", "sequence_start": True}, "'zz;alice' is not a sequence id; it must not hold ';'"),
        ({"sequence_id": " alice", "sequence_start": True}, "neither begin nor end with a space"),
    ],
)
def test_what_is_refused(headers, parameters, says):
    with pytest.raises(EndpointError, match=says) as refused:
        _sequence(headers, FakeModel(stateful=True), parameters)
    assert refused.value.failure.status == 400
