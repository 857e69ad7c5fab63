"""Which version of a model answers requests that name none."""

from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest

from torchserve_py.core.models.served_models import ModelVersions


@dataclass(eq=False)
class FakeModel:
    version: str
    is_loaded: bool = True
    dispatcher: ClassVar[Any] = Mock()


def versions_of(*models: Any) -> ModelVersions:
    found = ModelVersions(models[0], lambda: None)
    for model in models[1:]:
        found.add(model)
    return found


@pytest.mark.parametrize(
    ("registered", "latest"),
    [
        (["1"], "1"),
        (["2", "10", "9"], "10"),
        (["1.9", "1.10", "1"], "1.10"),
        (["b", "a"], "b"),
        (["10", "9", "beta"], "beta"),
        (["10", "9", "1-rc"], "9"),  # one of them is text, and so all are
        (["²", "1"], "²"),
        (["1", "9" * 5000], "9" * 5000),
    ],
)
def test_the_latest_is_the_highest_by_number_or_else_by_text(registered: list[str], latest: str) -> None:
    versions = versions_of(*map(FakeModel, registered))
    assert versions.latest().version == latest
    assert versions.default.version == registered[0]  # TorchServe's default stays what it was


def test_who_chooses_a_default_gets_it() -> None:
    first, second, third = map(FakeModel, "123")
    versions = versions_of(first, second, third)
    versions.choose(second)
    assert versions.latest() is versions.default is second
    versions.choose(first)  # which it was anyway
    assert versions.latest() is first


def test_a_version_without_a_worker_does_not_answer_for_one_that_has_some() -> None:
    first, second = FakeModel("1"), FakeModel("2", is_loaded=False)
    versions = versions_of(first, second)
    assert versions.latest() is first
    first.is_loaded = False
    assert versions.latest() is second


def test_a_choice_ends_with_the_version() -> None:
    first, second, third = map(FakeModel, "123")
    versions = versions_of(first, second, third)
    versions.choose(second)
    versions.remove(second)
    assert versions.default is first
    assert versions.latest() is third
