"""Parallel workers in an installation where nothing starts several processes for one."""

import pytest

from torchserve_py.base.settings.schemas.yaml_mapping import parse_yaml_mapping
from torchserve_py.core.plans import config, contradictions
from torchserve_py.core.plans.config import InvalidModelConfig, parse_model_config


@pytest.fixture(autouse=True)
def _nothing_starts_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (config, contradictions):
        monkeypatch.setattr(module, "ranks", lambda: None)


@pytest.mark.parametrize("parallel", ["pp", "tp", "pptp"])
def test_several_processes_are_refused(parallel: str) -> None:
    text = f"parallelType: {parallel}\nparallelLevel: 2\n".encode()
    with pytest.raises(InvalidModelConfig, match=f"parallelType is {parallel} but nothing in this installation"):
        parse_model_config(parse_yaml_mapping(text))


def test_one_process_has_several_gpus() -> None:
    read = parse_model_config(parse_yaml_mapping(b"parallelType: custom\nparallelLevel: 2\n"))
    assert (read.parallel_level, read.ranks_asked_for) == (2, None)
