"""Folders as MLServer's documentation makes them, for its ready-made runtimes and for a model of one's own.

python -m tests.moves_in.mlserver_folders [MLSERVER], in an environment with the runtimes; MLSERVER is a checkout of
MLServer, whose example custom-json is served then, too.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import joblib
import lightgbm
import mlflow
import numpy as np
import requests
import xgboost
from sklearn.datasets import load_digits
from sklearn.linear_model import ElasticNet
from sklearn.svm import SVC
from tests.e2e.running_server import DEADLINE, RunningServer

#: Numbers as they stand in a request: as many rows as asked for, of so many columns.
Rows = list[list[float]]
FEATURES = 64


def train_sklearn(folder: Path, x: Any, y: Any) -> str:
    """scikit-learn's classifier, by joblib."""
    joblib.dump(SVC().fit(x, y), folder / "model.joblib")
    return "model.joblib"


def train_xgboost(folder: Path, x: Any, y: Any) -> str:
    """XGBoost's classifier, as JSON."""
    xgboost.XGBClassifier(n_estimators=3).fit(x, y).save_model(folder / "model.json")
    return "model.json"


def train_lightgbm(folder: Path, x: Any, y: Any) -> str:
    """LightGBM's booster, as text."""
    parameters = {"objective": "multiclass", "num_class": 10, "verbose": -1}
    lightgbm.train(parameters, lightgbm.Dataset(x, y), 3).save_model(folder / "model.bst")
    return "model.bst"


def train_mlflow(folder: Path, x: Any, y: Any) -> str:
    """A model that MLflow has saved."""
    mlflow.sklearn.save_model(ElasticNet().fit(x, y), folder / "saved", serialization_format="cloudpickle")
    return "saved"


RUNTIMES: dict[str, tuple[str, Callable[[Path, Any, Any], str]]] = {
    "mnist-svm": ("mlserver_sklearn.SKLearnModel", train_sklearn),
    "mnist-xgboost": ("mlserver_xgboost.XGBoostModel", train_xgboost),
    "mnist-lightgbm": ("mlserver_lightgbm.LightGBMModel", train_lightgbm),
    "mnist-mlflow": ("mlserver_mlflow.MLflowRuntime", train_mlflow),
}


def write_folder(directory: Path, name: str, x: Any, y: Any) -> Path:
    """Train a model, and write its settings as MLServer's documentation does."""
    implementation, train = RUNTIMES[name]
    folder = directory / name
    folder.mkdir()
    parameters = {"uri": f"./{train(folder, x, y)}", "version": "v0.1.0"}
    settings = {"name": name, "implementation": implementation, "parameters": parameters}
    (folder / "model-settings.json").write_text(json.dumps(settings))
    (folder / "settings.json").write_text(json.dumps({"debug": "true"}))
    return folder


def infer(server: RunningServer, name: str, tensor: dict[str, Any], **parameters: str) -> dict[str, Any]:
    """Ask a model, with a request as in MLServer's documentation."""
    url = f"{server.inference}/v2/models/{name}/infer"
    answer = requests.post(url, json={"inputs": [tensor], "parameters": parameters}, timeout=DEADLINE)
    assert answer.status_code == 200, f"{name}: {answer.text}"
    output: dict[str, Any] = answer.json()["outputs"][0]
    return output


def check_runtimes(server: RunningServer, names: Sequence[str], rows: Rows) -> None:
    """Each of the runtimes predicts for some rows."""
    tensor = {"name": "predict", "shape": [len(rows), FEATURES], "datatype": "FP32", "data": rows}
    for name in names:
        output = infer(server, name, tensor, content_type="np")
        assert output["shape"][0] == len(rows), output
        print(f"{name}: {RUNTIMES[name][0]}, {output['shape']} {output['datatype']}")


def check_mlflows_own_paths(server: RunningServer, rows: Rows) -> None:
    """MLflow's runtime has the paths of MLflow's own server."""
    assert requests.get(f"{server.inference}/ping", timeout=DEADLINE).status_code == 200
    answer = requests.post(f"{server.inference}/invocations", json={"inputs": rows}, timeout=DEADLINE)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["predictions"]) == len(rows)
    print("mnist-mlflow: /ping and /invocations are MLflow's")


def check_custom_json(server: RunningServer) -> None:
    """The request of the example's own documentation: a text with its length as shape."""
    text = json.dumps({"name": "Foo Bar", "message": "Hello from Client (REST)!"})
    tensor = {"name": "echo_request", "shape": [len(text)], "datatype": "BYTES", "data": [text]}
    (said,) = infer(server, "json-hello-world", tensor)["data"]
    assert json.loads(said)["request"] == {"echo_request": json.loads(text)}, said
    print("custom-json: as its documentation asks it")


def main() -> None:
    """Serve all folders, and ask each."""
    packages = ("mlserver", "mlserver-sklearn", "mlserver-xgboost", "mlserver-lightgbm", "mlserver-mlflow", "mlflow")
    print(*(f"{name} {version(name)}" for name in packages), sep=", ")
    directory = Path(tempfile.mkdtemp())
    os.chdir(directory)
    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32)
    folders: dict[str, Path | str] = {name: write_folder(directory, name, x, y) for name in RUNTIMES}
    if len(sys.argv) > 1:
        folders["json-hello-world"] = Path(sys.argv[1]) / "docs" / "examples" / "custom-json"
    with RunningServer(folders) as server:
        server.wait_ready()
        rows = x[:3].tolist()
        check_runtimes(server, list(RUNTIMES), rows)
        check_mlflows_own_paths(server, rows)
        if "json-hello-world" in folders:
            check_custom_json(server)


if __name__ == "__main__":
    main()
