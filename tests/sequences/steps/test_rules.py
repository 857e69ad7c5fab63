"""What becomes of a step, however late it comes: by its number, its token and its request id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts.protocol.messages import ENDED
from ts.sequences.steps.record import KeptStep, SequenceRecord, digest_of, digest_of_body, new_token
from ts.sequences.steps.rules import (
    APPLIED,
    DIFFERS,
    EXPIRED,
    GAP,
    OPEN,
    OVER,
    UNKNOWN_SEQUENCE,
    Claim,
    Refuse,
    Repeat,
    Rules,
    RunStep,
    judge,
)

BEGINS, RUNS = RunStep(True), RunStep(False)
KEPT = 3


def claim(number=None, token=None, request_id="", starts=False, body=b"x", asks=False):
    digest = b"" if asks else digest_of_body(body)
    return Claim(number, token, request_id or "job", bool(request_id), starts, digest, asks)


def record(last=0, token="t", closed="", ids=(), bodies=None, earlier=()):
    made = SequenceRecord()
    for each in earlier:
        made.begin(each, "1.0", "")
        made.last = 1
    made.begin(token, "1.0", "")
    for number in range(1, last + 1):
        request_id = ids[number - 1] if ids else f"server's {number}"
        body = bodies[number - 1] if bodies else b"x"
        made.apply(KeptStep(number, request_id, digest_of_body(body)), KEPT, digest_of(request_id) if ids else b"")
    made.closed = closed
    return made


def told(made, step, running=0, **rules):
    verdict = judge(step, made, running, Rules(**rules))
    return verdict.reason if isinstance(verdict, Refuse) else verdict


NOTHING = SequenceRecord()


@pytest.mark.parametrize("token", ["t", None])
def test_the_number_after_the_last_is_the_next_step(token):
    assert told(NOTHING, claim(1, token)) == BEGINS
    assert told(record(5), claim(6, token)) == RUNS
    assert told(record(5), claim(8, token), running=2) == RUNS
    assert told(record(5), claim(7, token)) == told(record(5), claim(2**63 - 1, token)) == GAP
    assert told(record(5), claim(7, token), running=2) == (409, "request_running")


@pytest.mark.parametrize("token", ["t", None])
@pytest.mark.parametrize("closed", ["", ENDED, "idle"])
def test_what_was_applied_is_never_applied_again(token, closed):
    assert told(record(9, closed=closed), claim(9, token)) == Repeat(9)
    assert told(record(9, closed=closed), claim(9, token, body=b"other")) == DIFFERS
    assert told(record(9, closed=closed), claim(5, token)) == APPLIED, "its answer is not kept any more"
    assert told(record(1, closed=closed), claim(1, token, starts=True)) == Repeat(1)


def test_a_late_copy_of_the_first_step_begins_nothing():
    for closed in ("", ENDED, "idle"):
        assert told(record(9, closed=closed), claim(1, "t", starts=True)) == Repeat(1)
        assert told(record(9, closed=closed), claim(1, "t", starts=True, body=b"other")) == DIFFERS
    for closed in ("", ENDED):
        made = record(2, token="u", closed=closed, earlier=["t"])
        assert told(made, claim(1, "t", starts=True)) == told(made, claim(1, "t")) == APPLIED
        assert told(made, claim(None, "t", starts=True)) == OVER
        assert told(made, claim(3, "t")) == told(made, claim(2, "t")) == OVER


def test_a_number_greater_than_1_never_begins_a_sequence():
    for made in (NOTHING, record(3, token="u"), record(3, token="u", closed=ENDED)):
        assert told(made, claim(2, "t")) == told(made, claim(4, "t")) == UNKNOWN_SEQUENCE
    assert told(NOTHING, claim(2)) == UNKNOWN_SEQUENCE
    assert told(record(3, closed=ENDED), claim(4)) == told(record(3, closed=ENDED), claim(4, "t")) == OVER
    assert told(record(3, closed="idle"), claim(4, "t"), restart_expired=True) == EXPIRED


def test_another_token_begins_a_sequence_only_where_none_is_open_or_with_the_start_marker():
    assert told(record(3), claim(1, "u")) == OPEN
    assert told(record(3), claim(1, "u", starts=True)) == BEGINS
    assert told(record(3, closed=ENDED), claim(1, "u")) == told(record(3, closed="idle"), claim(1, "u")) == BEGINS
    assert told(record(0), claim(1, "u"), running=1) == OPEN, "its first step runs"
    assert told(record(3), claim(None, "u")) == UNKNOWN_SEQUENCE
    assert told(record(3), claim(None, "u", starts=True)) == BEGINS


def test_a_sequence_from_before_there_were_tokens_is_named_by_its_next_step():
    made = record(3)
    made.token = ""
    assert told(made, claim(4, "any")) == RUNS
    assert told(made, claim(3, "any")) == Repeat(3)


@pytest.mark.parametrize("number", [None, 1, 2])
@pytest.mark.parametrize("starts", [False, True])
def test_a_token_that_a_server_has_made_begins_nothing(number, starts):
    token = new_token()
    for made in (NOTHING, record(3), record(3, closed=ENDED), record(3, closed="idle")):
        assert told(made, claim(number, token, starts=starts)) == UNKNOWN_SEQUENCE
    assert told(record(3, token=token), claim(4, token)) == RUNS
    assert told(record(3, token="u", earlier=[token]), claim(4, token)) == OVER


def test_an_id_is_known_however_late_it_comes():
    made = record(200, ids=[str(number) for number in range(200)])
    assert told(made, claim(request_id="199")) == Repeat(200)
    assert told(made, claim(request_id="199", body=b"other")) == DIFFERS
    assert told(made, claim(request_id="5")) == APPLIED
    assert told(made, claim(request_id="200")) == RUNS
    made.closed = ENDED
    assert told(made, claim(request_id="5")) == APPLIED
    assert told(made, claim(request_id="200")) == BEGINS


def test_a_start_marker_begins_another_sequence_unless_it_is_the_start_of_this_one():
    made = record(2, ids=["1", "2"])
    assert told(made, claim(request_id="1", starts=True)) == Repeat(1)
    assert told(made, claim(request_id="1", starts=True, body=b"other")) == BEGINS
    assert told(made, claim(request_id="2", starts=True)) == told(made, claim(starts=True)) == BEGINS
    made.closed = ENDED
    assert told(made, claim(request_id="1", starts=True)) == BEGINS, "its client has had the first answer"
    alone = record(1, ids=["1"], closed=ENDED)
    assert told(alone, claim(request_id="1", starts=True)) == told(alone, claim(request_id="1")) == Repeat(1)


def test_a_client_with_neither_begins_what_is_not_open_unless_a_start_is_required():
    over = record(3, closed=ENDED)
    assert told(NOTHING, claim()) == told(over, claim()) == BEGINS
    assert told(NOTHING, claim(), require_start=True) == told(over, claim(), require_start=True) == UNKNOWN_SEQUENCE
    assert told(NOTHING, claim(starts=True), require_start=True) == BEGINS
    assert told(NOTHING, claim(1), require_start=True) == BEGINS
    expired = record(3, closed="idle")
    assert told(expired, claim()) == EXPIRED
    assert told(expired, claim(), restart_expired=True) == BEGINS
    assert told(expired, claim(), restart_expired=True, require_start=True) == UNKNOWN_SEQUENCE


def test_who_only_asks_begins_nothing():
    made = record(2, ids=["1", "2"], closed=ENDED)
    assert told(made, claim(request_id="1", asks=True)) == Repeat(1)
    assert told(made, claim(1, asks=True)) == Repeat(1)


def test_a_digest_is_found_at_its_own_place_only():
    made = SequenceRecord(ids=bytearray(digest_of("a") + digest_of("b")))
    shifted = SequenceRecord(ids=bytearray(b"." * 3 + digest_of("a") + b"." * 5))
    assert made.has_id("a") and made.has_id("b") and not made.has_id("c")
    assert not shifted.has_id("a")


attempts = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from("tuv"), st.booleans(), st.sampled_from([b"x", b"y"]), st.booleans()),
    max_size=60,
)


@given(attempts)
def test_in_any_order_each_step_of_each_token_is_applied_once_and_in_order(orders):
    """However often and late copies come: what a client with numbers and tokens is promised."""
    made, applied, begun = SequenceRecord(), {}, []
    for number, token, starts, body, ends in orders:
        verdict = judge(claim(number, token, starts=starts and number == 1, body=body), made, 0, Rules())
        if isinstance(verdict, Repeat):
            assert applied[made.token][verdict.number - 1] == body
            assert (made.token, verdict.number) == (token, number)
        elif isinstance(verdict, RunStep):
            if verdict.begins:
                assert number == 1 and token not in begun
                begun.append(token)
                made.begin(token, "1.0", "")
                applied[token] = []
            assert made.token == token and number == len(applied[token]) + 1
            applied[token].append(body)
            made.apply(KeptStep(number, "", digest_of_body(body)), KEPT)
            if ends:
                made.closed = ENDED
