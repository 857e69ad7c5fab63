"""Statistics as Triton has them, and as its clients rely on them."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.base.metrics.records import end_batch, end_job
from tests.endpoints.fake_serving import FakeModel, FakeServing

from torchserve_py.apis.open_inference import descriptions
from torchserve_py.base.causes import Cause
from torchserve_py.core.serving.errors import ModelNotFound, ModelVersionNotFound

DURATIONS = {
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
}


def opens_all(name: str) -> None:
    """Let a client see every model."""


def serve(model, *, queued=0.25, ran=0.5, fails=False):
    """What the dispatcher tells of one job."""
    end_batch(model.metrics, ran, ran, answered=not fails)
    told = Cause.queue_full if fails else 200
    end_job(model.metrics, queued + ran, waited=queued, told=told, failed=fails, ended_at=time.monotonic())


def duration(count, seconds):
    return {"count": count, "ns": pytest.approx(seconds * 1e9, abs=2)}


def test_a_model_that_has_done_nothing():
    (entry,) = descriptions.statistics(FakeServing(), "noop", None, opens_all)
    assert (entry["name"], entry["version"]) == ("noop", "1.0")  # as the index and the metadata have it
    assert entry["last_inference"] == entry["inference_count"] == entry["execution_count"] == 0
    assert entry["inference_stats"] == {name: {"count": 0, "ns": 0} for name in DURATIONS}
    assert entry["batch_stats"] == []


def test_answers_and_failures_are_told_apart():
    registry = FakeServing()
    serve(registry.model)
    serve(registry.model, ran=1.5)
    serve(registry.model, fails=True)
    (entry,) = descriptions.statistics(registry, "noop", None, opens_all)
    stats = entry["inference_stats"]
    assert stats["success"] == duration(2, 2.5)
    assert stats["fail"] == duration(1, 0.75)
    assert stats["queue"] == duration(3, 0.75)
    assert stats["compute_infer"] == duration(2, 2.0)
    assert (entry["inference_count"], entry["execution_count"]) == (2, 2)
    assert abs(entry["last_inference"] / 1000 - time.time()) < 60


@given(st.lists(st.booleans(), max_size=20))
def test_what_perf_analyzer_relies_on_holds_at_every_moment(outcomes):
    registry = FakeServing()
    for number, fails in enumerate(outcomes, 1):
        serve(registry.model, fails=fails)
        stats = descriptions.statistics(registry, "noop", None, opens_all)[0]["inference_stats"]
        assert set(stats) == DURATIONS
        assert stats["queue"]["count"] == number
        counts = {stats[f"compute_{part}"]["count"] for part in ("input", "infer", "output")}
        assert len(counts) == 1


def test_batches_by_size():
    registry = FakeServing()
    for rows, seconds in ((3, 0.5), (1, 0.25), (3, 1.0)):
        end_batch(registry.model.metrics, seconds, seconds, rows)
    (entry,) = descriptions.statistics(registry, "noop", None, opens_all)
    assert [(each["batch_size"], each["compute_infer"]) for each in entry["batch_stats"]] == [
        (1, duration(1, 0.25)),
        (3, duration(2, 1.5)),
    ]
    assert all(each["compute_input"]["count"] == each["compute_infer"]["count"] for each in entry["batch_stats"])


def test_one_version_all_versions_all_models():
    registry = FakeServing([FakeModel("a", "1.0"), FakeModel("a", "7"), FakeModel("b", "2.0")])

    def found(*which):
        return [(entry["name"], entry["version"]) for entry in descriptions.statistics(registry, *which, opens_all)]

    assert found(None, None) == [("a", "1.0"), ("a", "7"), ("b", "2.0")]
    assert found("a", None) == [("a", "1.0"), ("a", "7")]
    assert found("a", "7") == [("a", "7")]
    with pytest.raises(ModelNotFound):
        found("c", None)
    with pytest.raises(ModelVersionNotFound):
        found("a", "8")


def test_failures_and_parts_of_streams_are_no_executions():
    registry = FakeServing()
    model = registry.model
    end_batch(model.metrics, 0.5, 0.5, 1, ["answered", "failed", "continued"])
    end_batch(model.metrics, 0.5, 0.5, 0, ["failed"])
    end_batch(model.metrics, 0.5, 0.5, 0, ["continued"])
    end_job(model.metrics, 0.5, waited=0.0)
    (entry,) = descriptions.statistics(registry, "noop", None, opens_all)
    assert (entry["inference_count"], entry["execution_count"]) == (1, 1)
    assert [(each["batch_size"], each["compute_infer"]["count"]) for each in entry["batch_stats"]] == [(1, 1)]


def test_where_each_request_is_a_call_of_its_own_answers_that_come_together_are_several_executions():
    registry = FakeServing()
    model = registry.model
    model.config = replace(model.config, async_communication=True)
    end_batch(model.metrics, 0.5, 0.5, 3)
    for _ in range(3):
        end_job(model.metrics, 0.5, waited=0.0)
    assert descriptions.statistics(registry, "noop", None, opens_all)[0]["execution_count"] == 3
    model.declared = {"max_batch_size": 8}
    assert descriptions.statistics(registry, "noop", None, opens_all)[0]["execution_count"] == 1
