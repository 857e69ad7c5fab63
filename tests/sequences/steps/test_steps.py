"""Steps of sequences in a worker: committed before they are answered, applied once, taken over, refused."""

from typing import Any

import pytest
from tests.sequences.steps.conftest import EVERY_KIND
from tests.sequences.steps.stepping import AT_ONCE, TOTAL, Make, answered, close, step
from tests.unit.ts.frontend_stub import Worker

from ts.protocol.messages import OPEN_INFERENCE_REST


def test_states_outlive_the_worker(durable_worker: Make) -> None:
    first = durable_worker(TOTAL)
    assert answered(first, step("j1", "s", "5"), step("j2", "t", "7")) == ["5", "7"]
    assert answered(first, step("j3", "s", "1")) == ["6"]
    second = durable_worker(TOTAL)
    assert answered(second, step("j4", "s", "10"), step("j5", "t", "10"), step("j6", "u", "1")) == ["16", "17", "1"]


def test_an_answer_tells_how_large_the_state_is_that_was_written_with_it(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    first = worker.infer(step("j1", "s", "5"))[0].news.state_size
    state = worker.service.context.sequence_cache.encoded("s")
    assert first == len(state)
    steps = [step("j2", "s", "boom"), step("j1", "s", "5"), step("j3", "s", "1", end=True)]
    sizes = [worker.infer(each)[0].news.state_size for each in steps]
    assert sizes == [0, 0, 0], "what fails, is repeated or ends the sequence writes no state"


def test_a_step_that_is_sent_again_is_answered_as_it_was(durable_worker: Make) -> None:
    first = durable_worker(TOTAL)
    (before,) = first.infer(step("j1", "s", "5"))
    second = durable_worker(TOTAL)
    (again,) = second.infer(step("j1", "s", "5"))
    assert again == before
    assert second.module.calls == []
    assert answered(second, step("j2", "s", "1")) == ["6"]


@EVERY_KIND
def test_the_client_may_name_its_requests(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    assert answered(worker, step("j1", "s", "5", request_id="r1"), step("j2", "t", "5", request_id="r1")) == ["5", "5"]
    assert answered(worker, step("j3", "s", "5", request_id="r1")) == ["5"]
    assert answered(worker, step("j4", "s", "5", request_id="r2")) == ["10"]


def test_the_answers_to_the_last_steps_are_kept(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL, kept=3)
    for number in range(5):
        answered(worker, step(f"j{number}", "s", "1", request_id=f"r{number}"))
    other = durable_worker(TOTAL, kept=3)
    repeated = [step(f"k{number}", "s", "1", request_id=f"r{number}") for number in (2, 3, 4)]
    assert [answered(other, each) for each in repeated] == [["3"], ["4"], ["5"]]
    assert answered(other, step("k1", "s", "1", request_id="r1")) == [(409, "step_applied")]
    assert answered(other, step("k5", "s", "1", request_id="r5")) == ["6"]


@EVERY_KIND
def test_a_failed_batch_changes_nothing(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    assert answered(worker, step("j1", "s", "5"), step("j2", "t", "5")) == ["5", "5"]
    assert answered(worker, step("j3", "s", "1"), step("j4", "t", "boom"), step("j5", "u", "1")) == [(503, "")] * 3
    assert answered(worker, step("j6", "s", "1"), step("j7", "t", "1"), step("j8", "u", "1")) == ["6", "6", "1"]


@EVERY_KIND
def test_a_failed_row_changes_nothing_and_its_batch_mates_go_on(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    assert answered(worker, step("j1", "s", "5"), step("j2", "t", "unsendable")) == ["5", (503, "")]
    assert answered(worker, step("j3", "s", "1"), step("j4", "t", "1")) == ["6", "1"]


def test_a_state_that_makes_room_comes_back(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL, capacity=2)
    for sequence in "abcdef":
        assert answered(worker, step(f"j{sequence}", sequence, "1")) == ["1"]
    assert len(worker.service.context.sequence_cache) == 2
    assert answered(worker, *(step(f"k{sequence}", sequence, "1") for sequence in "abcdef")) == ["2"] * 6
    assert len(worker.service.context.sequence_cache) == 2


@EVERY_KIND
def test_a_state_that_the_handler_drops_is_gone(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    assert answered(worker, step("j1", "s", "5")) == ["5"]
    assert answered(worker, step("j2", "s", "forget")) == ["forgotten"]
    assert answered(durable_worker(TOTAL), step("j3", "s", "1")) == ["1"]


@pytest.mark.parametrize("ending", [{"body": "0"}, {"body": "2", "end": True}])
def test_an_ended_sequence_begins_anew_but_its_last_answer_is_kept(durable_worker: Make, ending: Any) -> None:
    worker = durable_worker(TOTAL)
    answered(worker, step("j1", "s", "5"))
    last = answered(worker, step("j2", "s", request_id="last", **ending))
    other = durable_worker(TOTAL)
    assert answered(other, step("j3", "s", request_id="last", **ending)) == last
    assert answered(other, step("j4", "s", "3")) == ["3"]


@EVERY_KIND
def test_who_asks_for_a_last_answer_again_holds_nothing(durable_worker: Make) -> None:
    worker, elsewhere = durable_worker(TOTAL), durable_worker(TOTAL, owner="another machine/1/1")
    for sequence in "stu":
        last = step(f"1{sequence}", sequence, "2", request_id="last", end=True)
        assert answered(worker, last) == ["2"]
        worker.admit(last)
        worker.runtime.step()  # and no more, as if there were other work
        assert answered(elsewhere, step(f"2{sequence}", sequence, "3")) == ["3"]


@EVERY_KIND
def test_a_start_begins_anew(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    answered(worker, step("j1", "s", "5"))
    assert answered(worker, step("j2", "s", "1", start=True)) == ["1"]
    other = durable_worker(TOTAL)
    assert answered(other, step("j3", "s", "4", start=True)) == ["4"]
    assert answered(other, step("j4", "s", "1")) == ["5"]


def test_an_expired_sequence_is_refused(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    answered(worker, step("j1", "s", "5"), step("j2", "t", "5", request_id="kept"))
    close(worker, s="idle", t="timeout")
    other = durable_worker(TOTAL)
    expired = (410, "sequence_expired")
    assert answered(other, step("j3", "s", "1"), step("j4", "t", "1")) == [expired, expired]
    assert answered(other, step("j5", "t", "5", request_id="kept")) == ["5"]
    assert answered(other, step("j5", "t", "1", request_id="kept")) == [(409, "step_differs")]
    assert answered(other, step("j6", "s", "1", start=True)) == ["1"]
    lenient = durable_worker(TOTAL, restart_expired=True)
    assert answered(lenient, step("j7", "t", "2")) == ["2"]


def test_a_sequence_that_was_abandoned_is_refused(durable_worker: Make) -> None:
    answered(durable_worker(TOTAL, lifetime=AT_ONCE), step("j1", "s", "5"))
    assert answered(durable_worker(TOTAL), step("j2", "s", "1")) == [(410, "sequence_expired")]


def test_a_drained_sequence_goes_on(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    answered(worker, step("j1", "s", "5"))
    close(worker, s="drained")
    assert answered(durable_worker(TOTAL), step("j2", "s", "1")) == ["6"]


def test_another_server_is_kept_out_until_the_lease_is_over(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL, lease=600.0)
    answered(worker, step("j1", "s", "5"))
    elsewhere = durable_worker(TOTAL, owner="another machine/1/1")
    assert answered(elsewhere, step("j2", "s", "1"), step("j3", "t", "1")) == [(409, "sequence_held"), "1"]
    worker.runtime.close()
    assert answered(elsewhere, step("j4", "s", "1")) == ["6"]


def test_a_stale_owner_notices_before_it_runs(durable_worker: Make) -> None:
    stale = durable_worker(TOTAL, lease=0.0)
    answered(stale, step("j1", "s", "5"))
    elsewhere = durable_worker(TOTAL, owner="another machine/1/1", lease=600.0)
    assert answered(elsewhere, step("j2", "s", "1")) == ["6"]
    stale.module.calls.clear()
    assert answered(stale, step("j3", "s", "1")) == [(409, "sequence_held")]
    assert stale.module.calls == []
    assert answered(elsewhere, step("j4", "s", "1")) == ["7"]


def test_a_state_that_is_too_large_is_refused_with_its_size(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL, most_state=10)
    (result,) = worker.infer(step("j1", "s", "1"))
    assert result[2] == 500
    assert "handler.cache.maxStateSize allows 10" in result[6]
    elsewhere = durable_worker(TOTAL, owner="another machine/1/1")
    assert answered(elsewhere, step("j2", "s", "7")) == ["7"], "the lease was given back"


def test_a_stale_owners_commit_is_refused(durable_worker: Make) -> None:
    stale = durable_worker(TOTAL, lease=600.0)
    assert answered(stale, step("j1", "s", "5"), step("j2", "t", "5")) == ["5", "5"]
    # The same server's scheduler gives the sequence to another worker, because it takes this one for dead.
    successor = durable_worker(TOTAL)
    assert answered(successor, step("j3", "s", "1")) == ["6"]
    assert answered(stale, step("j4", "s", "10"), step("j5", "t", "10")) == [(409, "sequence_moved"), "15"]
    assert answered(successor, step("j6", "s", "1")) == ["7"]


def test_a_server_that_is_gone_keeps_nobody_out(durable_worker: Make) -> None:
    from ts.sequences.steps.server_identity import server_identity

    place, _, _ = server_identity().partition("/")
    answered(durable_worker(TOTAL, owner=f"{place}/4194305/1", lease=600.0), step("j1", "s", "5"))
    assert answered(durable_worker(TOTAL), step("j2", "s", "1")) == ["6"]


@EVERY_KIND
def test_states_of_other_models_and_versions_are_others(
    durable_worker: Make, make_worker: Make, cache_settings: Any
) -> None:
    answered(durable_worker(TOTAL), step("j1", "s", "5"))
    other = make_worker(TOTAL, model_name="another", sequences=True, cache=cache_settings())
    assert answered(other, step("j2", "s", "1")) == ["1"]


@EVERY_KIND
def test_a_cancelled_step_changes_nothing(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    answered(worker, step("j1", "s", "5"))
    worker.admit(step("j2", "s", "1"))
    worker.connection.cancelled.add("j2")
    worker.runtime.step()
    assert worker.peer.result_rows()[0][2] == 499
    assert answered(worker, step("j3", "s", "1")) == ["6"]


def test_a_state_of_unknown_classes_is_an_error_of_that_step_alone(durable_worker: Make) -> None:
    worker = durable_worker("""
        from ts.sequence import SequenceCache

        class Handler:
            def initialize(self, context):
                self.cache = SequenceCache(context)

            def handle(self, data, context):
                for index, row in enumerate(data):
                    self.cache[context.get_sequence_id(index)] = object() if row["body"] == b"bad" else 1
                return ["ok"] * len(data)
    """)
    assert answered(worker, step("j1", "s", "bad"), step("j2", "t", "good")) == [(500, "handler_error"), "ok"]


# Streams: a row streams its number of further parts, each of which adds one to the state.
STREAM = """
    from ts.sequence import SequenceCache

    class Handler:
        def initialize(self, context):
            self.cache = SequenceCache(context)
            self.left = {}

        def on_cancel(self, jobs):
            for job in jobs:
                del self.left[job]

        def handle(self, data, context):
            results = []
            for index, row in enumerate(data):
                job, sequence = context.get_request_id(index), context.get_sequence_id(index)
                if job not in self.left:
                    self.left[job] = int(row["body"])
                self.left[job] -= 1
                self.cache[sequence] = self.cache.get(sequence, 0) + 1
                results.append(f"{self.cache[sequence]} ")
            jobs = list(context.request_ids.values())
            context.stopping_criteria = [lambda result, job=job: self.left[job] <= 0 for job in jobs]
            return results
"""


def run_out(worker: Worker) -> list[list[Any]]:
    rows: list[list[Any]] = []
    while worker.runtime.is_busy:
        worker.runtime.step()
        rows += worker.peer.result_rows()
    return rows


def test_a_stream_is_committed_with_its_last_part(durable_worker: Make) -> None:
    first = durable_worker(STREAM, continuous=True)
    first.admit(step("j1", "s", "3"))
    first.runtime.step()
    assert [result[5] for result in first.peer.result_rows()] == [b"1 "]
    # The worker dies here: nothing has happened.
    second = durable_worker(STREAM, continuous=True)
    second.admit(step("j1", "s", "3"))
    assert [result[5] for result in run_out(second)] == [b"1 ", b"2 ", b"3 "]
    third = durable_worker(STREAM, continuous=True)
    third.admit(step("j1", "s", "3"))
    (kept,) = third.peer.result_rows()
    assert (kept[1], kept[5]) == (False, b"1 2 3 ")
    assert "ts_stream_next" not in dict(kept[4])


def test_a_stream_that_another_step_joins_is_committed_with_that(durable_worker: Make) -> None:
    first = durable_worker(STREAM, continuous=True)
    first.admit(step("j1", "s", "9"))
    first.runtime.step()
    first.admit(step("j2", "s", "1"))
    first.runtime.step()
    assert [result[5] for result in first.peer.result_rows()] == [b"1 ", b"2 ", b"3 "]
    second = durable_worker(STREAM, continuous=True)
    second.admit(step("j1", "s", "9"), step("j3", "s", "1"))
    (interrupted,) = second.peer.result_rows()
    assert interrupted[5] == b"1 2 "
    assert dict(interrupted[4])["ts_stream_interrupted"] == "true"
    assert [result[5] for result in run_out(second)] == [b"4 "]


@EVERY_KIND
def test_a_stream_whose_client_leaves_changes_nothing(durable_worker: Make) -> None:
    worker = durable_worker(STREAM, continuous=True)
    worker.admit(step("j1", "s", "9"))
    worker.runtime.step()
    worker.connection.cancelled.add("j1")
    worker.runtime.step()
    assert [result[2] for result in worker.peer.result_rows()] == [200, 499]
    worker.admit(step("j2", "s", "1"))
    assert [result[5] for result in run_out(worker)] == [b"1 "]


@EVERY_KIND
def test_a_request_that_still_runs_is_not_run_twice(durable_worker: Make) -> None:
    worker = durable_worker(STREAM, continuous=True)
    worker.admit(step("j1", "s", "2", request_id="r"))
    worker.runtime.step()
    worker.peer.result_rows()
    worker.admit(step("j2", "s", "2", request_id="r"))
    (refused,) = worker.peer.result_rows()
    assert (refused[2], refused.news.cause) == (409, "request_running")
    assert [result[5] for result in run_out(worker)] == [b"2 "]


def told(results: list[list[Any]]) -> list[tuple[str, int, str]]:
    """Of each last part its job, status and cause."""
    return [(each[0], each[2], each.news.cause) for each in results if not each[1]]


@EVERY_KIND
def test_what_runs_beside_a_step_that_fails_does_not_count(durable_worker: Make) -> None:
    worker = durable_worker(STREAM, continuous=True)
    assert answered(worker, step("j0", "s", "1")) == ["1 "]
    worker.admit(step("j1", "s", "9"))
    worker.runtime.step()
    worker.admit(step("j2", "s", "9"))
    worker.runtime.step()
    worker.connection.cancelled.add("j2")
    worker.runtime.step()
    assert told(worker.peer.result_rows()) == [("j2", 499, ""), ("j1", 409, "sequence_moved")]
    assert run_out(worker) == [], "only the lease is given back"
    worker.admit_frame([step("j1", "s", "2")])  # as its client was told to do
    assert [result[5] for result in run_out(worker)] == [b"2 ", b"3 "]


@EVERY_KIND
def test_what_is_answered_beside_a_step_that_fails_does_not_count(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL, continuous=True)
    worker.admit(step("j1", "s", "1"), step("j2", "s", "unsendable"), step("j3", "other", "5"))
    results = told(run_out(worker))
    assert results == [("j1", 409, "sequence_moved"), ("j2", 503, ""), ("j3", 200, "")]
    worker.admit(step("j1", "s", "2"))
    assert [result[5] for result in run_out(worker)] == [b"2"]


@EVERY_KIND
def test_a_request_that_joins_after_a_client_left_knows_nothing_of_what_that_did(durable_worker: Make) -> None:
    worker = durable_worker(STREAM, continuous=True)
    worker.admit(step("j1", "s", "9"))
    worker.runtime.step()
    worker.connection.cancelled.add("j1")
    worker.admit(step("j2", "s", "1"))
    worker.runtime.step()
    results = [(each[0], each[2], each[5]) for each in worker.peer.result_rows()]
    assert results == [("j1", 200, b"1 "), ("j1", 499, b""), ("j2", 200, b"1 ")]


def test_a_sequence_that_ends_beside_a_stream_ends_with_that(durable_worker: Make) -> None:
    worker = durable_worker(STREAM, continuous=True)
    worker.admit(step("j1", "s", "3"))
    worker.runtime.step()
    worker.admit(step("j2", "s", "1", end=True))
    assert told(run_out(worker)) == [("j2", 200, ""), ("j1", 200, "")]
    assert answered(worker, step("j3", "s", "1")) == ["1 "]


def test_a_sequence_that_has_ended_is_over_although_what_runs_on_fails(durable_worker: Make) -> None:
    worker = durable_worker(STREAM.replace('f"', 'object() if self.left[job] == 5 else f"'), continuous=True)
    worker.admit(step("j1", "s", "8"))
    worker.runtime.step()
    worker.admit(step("j2", "s", "1", end=True))
    worker.runtime.step()
    worker.admit(step("j3", "s", "1"))
    assert told(run_out(worker)) == [("j2", 200, ""), ("j1", 503, ""), ("j3", 409, "sequence_moved")]
    assert answered(worker, step("j4", "s", "1")) == ["1 "]


#: A row is answered with a first part and a last one, which says that its sequence is over.
ENDS_LATE = """
    from ts.sequence import SequenceCache

    class Handler:
        def initialize(self, context):
            self.cache = SequenceCache(context)
            self.begun = set()

        def handle(self, data, context):
            jobs = [context.get_request_id(index) for index in range(len(data))]
            for index, job in enumerate(jobs):
                sequence = context.get_sequence_id(index)
                self.cache[sequence] = self.cache.get(sequence, 0) + 1
                if job in self.begun:
                    context.set_response_header(index, context.header_key_sequence_end, sequence)
                context.set_response_header(index, "x-always", "1")
            goes_on = [job not in self.begun for job in jobs]
            self.begun.update(jobs)
            context.stopping_criteria = [lambda result, more=more: not more for more in goes_on]
            return [str(self.cache[context.get_sequence_id(index)]) for index in range(len(data))]
"""


@pytest.mark.parametrize("protocol", [None, OPEN_INFERENCE_REST])
def test_a_sequence_ends_with_the_last_part_of_a_stream(durable_worker: Make, protocol: str | None) -> None:
    row = step("j1", "s", "x")
    if protocol is not None:
        body = b'{"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]}'
        row = row._replace(content_type="application/json", body=body, protocol=protocol)
    first = durable_worker(ENDS_LATE, continuous=True)
    first.admit(row)
    parts = run_out(first)
    assert [dict(part[4]).get("ts_request_sequence_end") for part in parts] == [None, "s"]
    # The worker dies here: what it has committed with the last part counts.
    second = durable_worker(ENDS_LATE, continuous=True)
    second.admit(row)
    (kept,) = second.peer.result_rows()
    assert dict(kept[4])["ts_request_sequence_end"] == "s"
    assert dict(kept[4])["x-always"] == "1"
    second.admit(step("j2", "s", "x"))
    assert [part[5] for part in run_out(second)] == [b"1", b"2"]
