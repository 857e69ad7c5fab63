"""What handlers get for requests of the Open Inference Protocol."""

from pathlib import Path
from typing import Any

import pytest
from tests.endpoints.fakes import make_settings

from torchserve_py.apis.open_inference.open_inference_keys import OpenInferenceKeys, gets_body
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys


@pytest.mark.parametrize(
    ("server", "yaml", "as_body"),
    [
        ("tensors", {}, False),
        ("body", {}, True),
        ("body", {"openInferenceRows": "tensors"}, False),
        ("tensors", {"openInferenceRows": "body"}, True),
    ],
)
def test_a_model_says_what_it_gets_else_the_server(
    server: str, yaml: dict[str, Any], as_body: bool, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, open_inference_rows=server)
    assert gets_body(PluginKeys((OpenInferenceKeys.model_validate(yaml),)), settings) is as_body
