"""MLServer's ready-made runtimes, from their own packages, serve what scikit-learn, XGBoost and LightGBM have saved."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(40, 3)).astype(np.float32)
LABELS = (POINTS.sum(axis=1) > 0).astype(int)


def sklearn_model(folder: Path) -> tuple[str, np.ndarray[Any, Any]]:
    import joblib  # these take seconds to import, in each process that collects tests
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit(POINTS, LABELS)
    joblib.dump(model, folder / "model.joblib")
    return "mlserver_sklearn.SKLearnModel", model.predict(POINTS)


def xgboost_model(folder: Path) -> tuple[str, np.ndarray[Any, Any]]:
    import xgboost

    booster = xgboost.train({"objective": "binary:logistic", "nthread": 1}, xgboost.DMatrix(POINTS, LABELS), 5)
    booster.save_model(folder / "model.json")
    return "mlserver_xgboost.XGBoostModel", booster.predict(xgboost.DMatrix(POINTS))


def lightgbm_model(folder: Path) -> tuple[str, np.ndarray[Any, Any]]:
    import lightgbm

    parameters = {"objective": "binary", "num_threads": 1, "verbose": -1, "min_data_in_leaf": 2}
    booster = lightgbm.train(parameters, lightgbm.Dataset(POINTS, LABELS), 5)
    booster.save_model(folder / "model.bst")
    return "mlserver_lightgbm.LightGBMModel", np.asarray(booster.predict(POINTS))


MAKERS: dict[str, Callable[[Path], tuple[str, np.ndarray[Any, Any]]]] = {
    "sklearn": sklearn_model,
    "xgboost": xgboost_model,
    "lightgbm": lightgbm_model,
}
FILES = {"sklearn": "model.joblib", "xgboost": "model.json", "lightgbm": "model.bst"}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, np.ndarray[Any, Any]]]:
    made = {}
    for name, make in MAKERS.items():
        folder = tmp_path_factory.mktemp("runtimes") / name
        folder.mkdir()
        implementation, predictions = make(folder)
        values = {"name": name, "implementation": implementation}
        values["parameters"] = {"uri": f"./{FILES[name]}", "version": "v1"}
        (folder / "model-settings.json").write_text(json.dumps(values))
        made[name] = folder, predictions
    return made


@pytest.fixture(scope="module")
def server(expected: dict[str, tuple[Path, np.ndarray[Any, Any]]]) -> Iterator[RunningServer]:
    with RunningServer({name: folder for name, (folder, _) in expected.items()}) as running:
        running.wait_ready()
        yield running


@pytest.mark.parametrize("name", MAKERS)
def test_predictions_are_those_of_the_library(
    name: str, server: RunningServer, expected: dict[str, tuple[Path, np.ndarray[Any, Any]]]
) -> None:
    item = {"name": "x", "shape": list(POINTS.shape), "datatype": "FP32", "data": POINTS.ravel().tolist()}
    url = f"{server.inference}/v2/models/{name}/infer"
    answer = requests.post(url, json={"inputs": [item]}, timeout=DEADLINE)
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    np.testing.assert_allclose(np.ravel(output["data"]), expected[name][1], rtol=1e-5)
