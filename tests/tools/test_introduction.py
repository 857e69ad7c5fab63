"""What `torchserve-py serve` tells of a model that does not declare what it takes."""

from pathlib import Path

import pytest
from tests.endpoints.fake_serving import FakeModel

from torchserve_py.tools.quickstart.introduction import introduction


@pytest.mark.parametrize(
    ("contract", "about", "body"),
    [
        ("sagemaker", "SageMaker)  takes what its script or its weights take", "[[1, 2]]"),
        ("mlflow", "MLflow)  takes what its signature says", '{"inputs": [[1, 2]]}'),
    ],
)
def test_a_guess_is_in_the_form_of_the_contract(contract: str, about: str, body: str, tmp_path: Path) -> None:
    model = FakeModel("mine")
    model.contract = contract
    assert list(introduction(model.served, {}, tmp_path, "http://host", None)) == [
        f"mine ({about}; this is a guess",
        f"  curl http://host/models/mine/invoke -H 'content-type: application/json' -d '{body}'",
    ]
