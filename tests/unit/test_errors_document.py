"""docs/errors.md explains every cause that an answer can name, with its status, and no others."""

import re
from pathlib import Path

import pytest

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.model_metrics import HANDLER_ERROR
from torchserve_py.endpoints.failures import (
    INVALID_REQUEST,
    NOT_FOUND,
    failure_of,
    failure_of_job,
    too_many_connections,
)
from torchserve_py.endpoints.management.management_calls import ModelApiDisabledError
from torchserve_py.fleet.saved_models.fleet_member import FLEET_NOT_TOLD
from torchserve_py.net.request_budget import NoRoomError
from torchserve_py.tools.quickstart.unloaded_endpoints import MODEL_NOT_LOADED
from torchserve_py.versions.rollout.rollouts import ROLLOUT_STOPPED, ROLLOUT_UNDER_WAY

ROOT = Path(__file__).parents[2]
#: A client that has gone away gets no answer that could name it.
UNSEEN = {Cause.cancelled}
#: The status that the page shows for each cause, with a star if the answer has `Retry-After`.
DOCUMENTED = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE))


def test_every_cause_is_explained() -> None:
    failures = [failure_of(NoRoomError()), too_many_connections(""), ModelApiDisabledError().failure]
    causes_of_endpoints = [
        HANDLER_ERROR,
        INVALID_REQUEST,
        FLEET_NOT_TOLD,
        MODEL_NOT_LOADED,
        NOT_FOUND,
        ROLLOUT_STOPPED,
        ROLLOUT_UNDER_WAY,
        *(failure.cause for failure in failures),
    ]
    assert sorted(DOCUMENTED) == sorted([*map(str, set(Cause) - UNSEEN), *map(str, causes_of_endpoints)])


@pytest.mark.parametrize("cause", sorted(set(Cause) - UNSEEN))
def test_its_status_is_that_of_the_server(cause: Cause) -> None:
    failure = failure_of_job(cause, "model", None)
    statuses, star, _ = DOCUMENTED[cause].partition(" *")
    assert str(failure.status) in statuses.split(", ")
    assert bool(star) == failure.overloaded
