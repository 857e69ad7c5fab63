"""The OpenAPI document says of the bodies about traffic what the server takes."""

import pytest
from openapi_schema_validator import OAS30Validator

from torchserve_py.endpoints.body_schemas import body_schema
from torchserve_py.versions.traffic.traffic_body import ShadowRules, TrafficBody, read_body, read_shadow_rules

CANARY = {"version": "2.0", "steps": [10, 50], "intervalSec": 5, "metrics": [{"name": "score", "minRatio": 0.5}]}


@pytest.mark.parametrize(
    ("body", "is_taken"),
    [
        ({"weights": {"1.0": 0, "2.0": 100}}, True),
        ({"weights": {"1.0": -1, "2.0": 101}}, False),
        ({"weights": {}}, False),
        ({"canary": CANARY}, True),
        ({"canary": CANARY | {"shadow": {"maxDifferent": 0.1}}}, True),
        ({"canary": CANARY | {"shadow": {"maxDifferent": 1}}}, False),
        ({"canary": CANARY | {"shadow": {"percent": 0}}}, False),
        ({"canary": CANARY | {"maxLatencyRatio": 0}}, False),
        ({"canary": CANARY | {"quantile": 0.4}}, False),
        ({"canary": CANARY | {"steps": [100]}}, False),
        ({"canary": CANARY | {"metrics": [{"maxRatio": 2}]}}, False),
        ({"canary": {"steps": [10]}}, False),
        ({"canary": CANARY | {"interval": 5}}, False),
        ({"canaries": CANARY}, False),
    ],
)
def test_traffic(body, is_taken):
    assert agree(read_body, TrafficBody, body) == is_taken


@pytest.mark.parametrize(
    ("body", "is_taken"),
    [
        ({"version": "2.0"}, True),
        ({"version": "2.0", "percent": 0.5, "tolerance": 0}, True),
        ({"version": "2.0", "percent": 0}, False),
        ({"version": "2.0", "tolerance": 2}, False),
        ({"version": ""}, False),
        ({"percent": 5}, False),
    ],
)
def test_shadows(body, is_taken):
    assert agree(read_shadow_rules, ShadowRules, body) == is_taken


def agree(read, model, body):
    """Whether the server takes a body, on which the document must agree."""
    try:
        read(body)
    except ValueError:
        is_taken = False
    else:
        is_taken = True
    assert OAS30Validator(body_schema(model)).is_valid(body) == is_taken
    return is_taken
