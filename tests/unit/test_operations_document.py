"""docs/operations.md explains every cause that an answer can name, and none that there is not."""

import re
from pathlib import Path

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.model_metrics import HANDLER_ERROR
from torchserve_py.endpoints.failures import INVALID_REQUEST, failure_of, too_many_connections
from torchserve_py.endpoints.management.management_calls import ModelApiDisabledError
from torchserve_py.fleet.saved_models.fleet_member import FLEET_NOT_TOLD
from torchserve_py.net.request_budget import NoRoomError
from torchserve_py.tools.quickstart.unloaded_endpoints import MODEL_NOT_LOADED
from torchserve_py.versions.rollout.rollouts import ROLLOUT_STOPPED, ROLLOUT_UNDER_WAY

ROOT = Path(__file__).parents[2]
#: A client that has gone away gets no answer that could name it.
UNSEEN = {Cause.cancelled}


def test_every_cause_is_explained() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    section = text.partition("## What a cause means and what to do")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    failures = [failure_of(NoRoomError()), too_many_connections(""), ModelApiDisabledError().failure]
    causes_of_endpoints = [
        HANDLER_ERROR,
        INVALID_REQUEST,
        FLEET_NOT_TOLD,
        MODEL_NOT_LOADED,
        ROLLOUT_STOPPED,
        ROLLOUT_UNDER_WAY,
        *(failure.cause for failure in failures),
    ]
    assert sorted(documented) == sorted([*map(str, set(Cause) - UNSEEN), *map(str, causes_of_endpoints)])
