"""A model of PyTorch, served by a subclass of BaseHandler as TorchServe's documentation shows it."""

from collections.abc import Iterator

import pytest
import requests
from tests.e2e.running_server import RunningServer, model_folder

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

MODEL = """
import torch


class Doubler(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2, bias=False)

    def forward(self, x):
        return self.linear(x)
"""

HANDLER = """
import torch
from ts.torch_handler.base_handler import BaseHandler


class PointHandler(BaseHandler):
    def preprocess(self, data):
        return torch.tensor([row.get("data") or row.get("body") for row in data], device=self.device)
"""


@pytest.fixture(scope="module", params=["eager", "torchscript"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = model_folder(tmp_path_factory.mktemp(request.param), "points", HANDLER, "deviceType: cpu\n")
    model = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2) * 2)
    if request.param == "eager":
        (folder / "model.py").write_text(MODEL)
        torch.save({"linear.weight": model.weight.detach()}, folder / "model.pt")
    else:
        torch.jit.script(model).save(str(folder / "model.pt"))
    with RunningServer({"points": folder}, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


def test_a_subclass_of_base_handler_predicts(server: RunningServer) -> None:
    response = requests.post(f"{server.inference}/predictions/points", json=[1.0, 2.5], timeout=180)
    assert response.json() == [2.0, 5.0]
