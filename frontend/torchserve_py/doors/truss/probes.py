"""Probes of Trusses: alive, loaded, ready, metrics. Probes do not wait for running requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torchserve_py.doors.pipeline import Answer
from torchserve_py.doors.responses import JSON_TYPE
from torchserve_py.doors.server_doors import METRICS_TYPE
from torchserve_py.doors.truss.truss_dialect import MODEL_FAILED, ErrorCode, error_answer, json_answer, not_ready

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel, Serving

#: Seconds within which a model must say whether it is healthy; Truss waits for ever, and a prober gives up.
_HEALTH_LIMIT: Final = 30.0
#: Seconds within which its metrics must be collected; Prometheus waits for 10 seconds.
_METRICS_LIMIT: Final = 10.0
LIVE: Final = Answer(200, b"true", (JSON_TYPE,))


def loaded(serving: Serving, model: ServedModel, name: str) -> Answer:
    """Return whether a worker has loaded the model, well or not."""
    return json_answer({}) if serving.is_loaded(model) else not_ready(name)


async def ready(serving: Serving, model: ServedModel, name: str) -> Answer:
    """Return whether the model has been loaded and says that it is well."""
    return (
        json_answer({})
        if serving.is_loaded(model) and await serving.check_health(model, _HEALTH_LIMIT)
        else not_ready(name)
    )


async def metrics(serving: Serving, model: ServedModel) -> Answer:
    """Return what the model's code counts itself, in all workers."""
    text = await serving.expose_metrics(model, _METRICS_LIMIT)
    if text is None:
        return error_answer(500, MODEL_FAILED, ErrorCode.model)
    return Answer(200, text.encode(), (("content-type", METRICS_TYPE),))


def schema(serving: Serving, model: ServedModel, name: str) -> Answer:
    """Return what the model takes and gives, as far as its annotations say."""
    if not serving.is_loaded(model):
        return not_ready(name)
    declared = serving.declared(model).get("schema")
    return error_answer(404, "No schema found", ErrorCode.model) if declared is None else json_answer(declared)
