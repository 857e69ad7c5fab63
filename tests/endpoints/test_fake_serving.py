"""The fake that endpoints are tested against has the interface of the real one."""

import inspect

import pytest
from tests.endpoints.fake_serving import FakeServing

from torchserve_py.core.models.registry import ModelRegistry
from torchserve_py.core.serving.serving import Serving

NAMES = [name for name in vars(Serving) if not name.startswith("_")]


@pytest.mark.parametrize("name", [name for name in NAMES if not isinstance(vars(Serving)[name], property)])
def test_the_fake_and_the_registry_take_what_endpoints_give(name: str) -> None:
    wanted = inspect.signature(getattr(Serving, name), eval_str=True)
    for implementation in (FakeServing, ModelRegistry):
        method = getattr(implementation, name)
        assert list(inspect.signature(method, eval_str=True).parameters.values()) == list(wanted.parameters.values())
        assert inspect.iscoroutinefunction(method) is inspect.iscoroutinefunction(getattr(Serving, name))


def test_both_have_the_properties_of_the_interface() -> None:
    assert [name for name in NAMES if not hasattr(FakeServing(), name)] == []
    assert [name for name in NAMES if not hasattr(ModelRegistry, name)] == []
