"""The base classes of handlers from before TorchServe 0.1."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import Worker, row

HANDLER = """
    from ts.model_service.model_service import SingleNodeService

    class Adder(SingleNodeService):
        def _preprocess(self, data):
            return data[0]

        def _inference(self, data):
            return sum(data)

        def _postprocess(self, data):
            return {"sum": data, "kind": self.signature()["input_type"]}
"""


def test_a_service_answers_in_three_steps(make_worker: Callable[..., Worker], tmp_path: Path) -> None:
    signature = {"input_type": "application/json", "inputs": [{"data_name": "numbers"}]}
    (tmp_path / "signature.json").write_text(json.dumps(signature))
    worker = make_worker(HANDLER, manifest={"Model": {"Signature": "signature.json"}})

    for row_of_any_kind in (
        row("a", b"[1, 2]", "application/json"),
        row("a", b"[1, 2]", "application/octet-stream"),
        row("a", [["numbers", None, b"[1, 2]"]]),
    ):
        [result] = worker.infer(row_of_any_kind)
        assert json.loads(result[5]) == {"sum": 3, "kind": "application/json"}


@pytest.mark.parametrize("manifest", [None, {}, {"Model": {"Signature": "absent.json"}}])
def test_a_missing_signature_is_named(make_worker: Callable[..., Worker], manifest: Any) -> None:
    with pytest.raises(ValueError, match="Signature file is not found"):
        make_worker(HANDLER, manifest=manifest)
