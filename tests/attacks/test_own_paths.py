"""Paths and tensors that models declare, which were to make it expensive to match paths and to describe tensors."""

import asyncio
import json

import pytest
from tests.endpoints.conftest import Start, start
from tests.endpoints.fake_serving import FakeModel, FakeServing

__all__ = ["start"]

#: Templates, and the ends of paths that a regular expression would share among their parameters in every way there is.
EXPENSIVE = {
    "parameters-between-hyphens": ("/f/{a}-{b}-{c}.json", "/f/" + "-" * 3900),
    "six-adjacent-parameters": ("/f/{a}{b}{c}{d}{e}{f}.json", "/f/" + "a" * 3900),
    "fifty-parameters": ("/f/" + "{a}-" * 50 + ".json", "/f/" + "a-" * 1900),
    "long-pieces": ("/f/" + "{a}" + "-" * 400 + "{b}" + "-" * 400 + "x", "/f/" + "-" * 3900),
    "parameter-across-segments": ("/{a}/{b:path}/{c}/{d}/x", "/f" * 1900),
    "segments": ("/{a}" * 200, "/-" * 1900),
}


def declaring(*templates: str) -> FakeModel:
    model = FakeModel("own")
    model.contract = "mlserver"
    model.declared = {"routes": [[template, ["GET"], "f"] for template in templates]}
    return model


@pytest.mark.parametrize("attack", EXPENSIVE.values(), ids=EXPENSIVE)
async def test_matching_a_path_takes_no_time_that_its_text_decides(start: Start, attack: tuple[str, str]) -> None:
    template, path = attack
    serving = await start(FakeServing([declaring(*[template] * 50)]), disable_token_authorization=False)
    token = json.loads(serving.key_file.read_text())["inference"]["key"]
    key = {"Authorization": f"Bearer {token}"}
    async with asyncio.timeout(60):  # a regular expression takes from 24 s to longer than anybody lives
        assert (await serving.request("GET", path)).status == 401  # without the token
        assert (await serving.request("GET", path, headers=key)).status == 404


@pytest.mark.parametrize(
    "routes",
    [5, -1, "GET /", {"a": 1}, [None], [[]], [["/f/{", ["GET"], "f"]], [[["/f"], ["GET"], "f"]], [["/f", 5, "f"]]],
)
async def test_declarations_that_make_no_sense_break_nobody_elses_paths(start: Start, routes: object) -> None:
    broken = declaring()
    broken.name, broken.declared = "broken", {"routes": routes}
    own = declaring("/f/{a}")
    own.behave = lambda call: call.part(b"own")
    serving = await start(FakeServing([broken, own]))
    assert (await serving.request("GET", "/f/1")).body == b"own"
    assert (await serving.request("GET", "/ping")).status == 200
    assert (await serving.request("GET", "/nowhere")).status == 404


async def test_a_declared_shape_is_not_multiplied_for_a_document(start: Start) -> None:
    """The event loop stood still for 14 s with a sixth of these sizes."""
    model = FakeModel("deep")
    tensors = [{"name": "x", "datatype": "FP32", "shape": [2**62 - 1] * 300_000}]
    model.declared = {"inputs": tensors, "outputs": tensors}
    serving = await start(FakeServing([model]))
    async with asyncio.timeout(60):
        assert (await serving.request("GET", "/v2/models/deep/docs")).status == 200
        assert (await serving.request("GET", "/v2/models/deep/docs/dataplane.json")).status == 200
