"""Keys of plugins in `model-config.yaml` that a model cannot have."""

import pytest

from torchserve_py.base.settings.schemas.yaml_mapping import parse_yaml_mapping
from torchserve_py.core.plans.config import InvalidModelConfig, parse_model_config

KEYS = b"""
openInferenceRows: body
openai: true
realtime: true
openpi: {}
"""


@pytest.mark.parametrize("contract", ["truss", "mlserver"])
def test_what_only_handlers_may_have_is_refused_all_at_once(contract: str) -> None:
    with pytest.raises(InvalidModelConfig) as refused:
        parse_model_config(parse_yaml_mapping(KEYS), contract=contract)
    told = [problem for problem in refused.value.problems if f"the model's contract is {contract}: " in problem]
    keys = ["openInferenceRows is body", "openai is true", "realtime is true", "openpi is set"]
    assert [problem.split(" but ")[0] for problem in told] == keys


@pytest.mark.parametrize("contract", ["truss", "mlserver"])
def test_what_is_switched_off_may_be_written_for_any_contract(contract: str) -> None:
    parse_model_config(parse_yaml_mapping(b"openai: false\nrealtime: false\n"), contract=contract)


@pytest.mark.parametrize(("text", "said"), [(b"realtime: true", "realtime is true"), (b"openpi: {}", "openpi is set")])
def test_sessions_need_sequences(text: bytes, said: str) -> None:
    with pytest.raises(InvalidModelConfig, match=f"{said} but sequenceBatching is not"):
        parse_model_config(parse_yaml_mapping(text))
