"""MLServer's metrics of inference, for models that are written for it."""

from tests.base.metrics.exposition import exposed
from tests.base.metrics.records import end_job

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.plugins import contracts

FURTHER = contracts()["mlserver"].metrics


def shown(metrics: ServerMetrics) -> list[str]:
    return [line for line in exposed(metrics).decode().splitlines() if "model_infer_request" in line]


def test_models_of_mlserver_are_shown_as_mlserver_shows_them() -> None:
    metrics = ServerMetrics("host")
    model = metrics.model("m", "1.0", FURTHER)
    metrics.model("other", "1.0")
    end_job(model, 1.0, waited=0.5)
    end_job(model, 0.5, waited=0.5)
    end_job(model, 8.0, told=Cause.queue_full, failed=True)
    assert shown(metrics) == [
        "# HELP model_infer_request_success_total Model infer request success count",
        "# TYPE model_infer_request_success_total counter",
        'model_infer_request_success_total{model="m",version="1.0",} 2.0',
        "# HELP model_infer_request_failure_total Model infer request failure count",
        "# TYPE model_infer_request_failure_total counter",
        'model_infer_request_failure_total{model="m",version="1.0",} 1.0',
        "# HELP model_infer_request_duration Model infer request duration",
        "# TYPE model_infer_request_duration summary",
        'model_infer_request_duration_count{model="m",version="1.0",} 2.0',
        'model_infer_request_duration_sum{model="m",version="1.0",} 1.5',
    ]


def test_they_go_with_the_model() -> None:
    metrics = ServerMetrics("host")
    metrics.model("m", "1.0", FURTHER)
    metrics.forget("m", "1.0")
    assert not shown(metrics)
