"""MLflow's deployment plugin for TorchServe: creates, lists, describes, updates, asks and deletes deployments.

python mlflow_client.py CONFIG_PROPERTIES MODEL_STORE, as `mlflow_server.py` does, with torch-model-archiver on the path
"""

import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
from mlflow.deployments import get_deploy_client

MODEL = """
import torch


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def forward(self, x):
        return self.linear(x)
"""
HANDLER = """
import torch

from ts.torch_handler.base_handler import BaseHandler


class LinearHandler(BaseHandler):
    def preprocess(self, requests):
        rows = [row.get("data") or row.get("body") for row in requests]
        rows = [row["data"] if isinstance(row, dict) else row for row in rows]
        return torch.tensor([[float(value) for value in rows]]).T
"""


def main() -> None:
    """Go through the life of a deployment."""
    print("mlflow", version("mlflow"), "mlflow-torchserve", version("mlflow-torchserve"))
    directory = Path(tempfile.mkdtemp())
    (directory / "linear.py").write_text(MODEL)
    (directory / "linear_handler.py").write_text(HANDLER)
    weights = {"linear.weight": torch.tensor([[3.0]]), "linear.bias": torch.tensor([1.0])}
    torch.save(weights, directory / "linear.pt")
    os.environ["CONFIG_PROPERTIES"] = sys.argv[1]
    os.environ["EXPORT_PATH"] = sys.argv[2]
    client = get_deploy_client("torchserve")
    config = {"MODEL_FILE": directory / "linear.py", "HANDLER": directory / "linear_handler.py"}
    for number in ("1.0", "2.0"):
        options = {"VERSION": number, **config, "initial_workers": 1, "synchronous": "true"}
        made = client.create_deployment("linear", str(directory / "linear.pt"), config=options)
        assert made["name"] == f"linear/{number}", made
    assert "linear" in [name for each in client.list_deployments() for name in each]
    assert len(json.loads(client.get_deployment("linear/all")["deploy"])) == 2
    client.update_deployment("linear/2.0", config={"set-default": "true"})
    client.update_deployment("linear", config={"min_worker": 2, "synchronous": "true"})
    assert json.loads(client.get_deployment("linear")["deploy"])[0]["modelVersion"] == "2.0"
    answer = client.predict("linear/1.0", json.dumps({"data": 5}))
    assert json.loads(answer) == [16.0], answer
    client.delete_deployment("linear/1.0")
    client.delete_deployment("linear/2.0")
    assert client.list_deployments() == []
    print("create, list, get, update, predict, delete")


if __name__ == "__main__":
    main()
