"""Estimators of scikit-learn and ONNX files, served as they are."""

import base64
import pickle
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import requests
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from tests.contracts.served_functions.test_served_function import Call, row
from tests.e2e.running_server import DEADLINE
from tests.e2e.serve_command import ServeCommand
from tests.unit.ts.torch_handler.test_model_formats import ONNX

from ts.contracts.served_functions.call_values import CallValues
from ts.contracts.served_functions.invalid_values import InvalidValue
from ts.contracts.served_functions.served_objects import served_object
from ts.jobs.errors import LoadError

NUMBERS = np.arange(12.0).reshape(6, 2)


def test_an_estimator_predicts_rows() -> None:
    call = Call(LogisticRegression().fit(NUMBERS, [0, 0, 0, 1, 1, 1]))
    assert call(row(body=[[0, 1], [10, 11]])) == [[0, 1]]
    declared = call.handler.declared
    assert declared["inputs"] == [{"name": "rows", "datatype": "FP64", "shape": [-1, 2]}]
    assert call(row(body=declared["function"]["example"])) == [[0]]
    assert call(row(rows=np.array([[0.0, 1.0]]))) == [[0]]


def test_an_estimator_of_texts_takes_texts() -> None:
    call = Call(make_pipeline(CountVectorizer(), MultinomialNB()).fit(["good", "bad"], ["yes", "no"]))
    assert call(row(body=["good"])) == [["yes"]]
    assert call.handler.declared["function"]["example"] == ["hello"]


def test_an_object_that_is_no_model_is_named() -> None:
    with pytest.raises(LoadError, match=r"serve got a builtins\.dict; it takes a function, a class with predict"):
        served_object({})


def ask(command: ServeCommand, path: str, body: Any) -> Any:
    answer = requests.post(f"{command.base}{path}", json=body, timeout=DEADLINE)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_rows_that_an_estimator_cannot_take_are_the_clients_mistake() -> None:
    values = CallValues(served_object(LinearRegression().fit(NUMBERS, NUMBERS[:, 0])).call, batched=False)
    assert values.read({"body": [[3, 4]]}) == {"rows": [[3.0, 4.0]]}
    assert values.read({"body": np.array([[3, 4]])}) == {"rows": [[3.0, 4.0]]}
    for wrong, told in (([[1, 2, 3]], "at most 2 items"), ([1, 2], "valid list"), ([[1, "a"]], "valid number")):
        with pytest.raises(InvalidValue, match=told):
            values.read({"body": wrong})


def test_files_of_models_are_served_as_they_are(tmp_path: Path) -> None:
    estimator = LinearRegression().fit(NUMBERS, NUMBERS[:, 0])
    joblib.dump(estimator, tmp_path / "prices.joblib")
    (tmp_path / "same one.pkl").write_bytes(pickle.dumps(estimator))
    (tmp_path / "triple.onnx").write_bytes(base64.b64decode(ONNX))
    with ServeCommand(tmp_path, "prices.joblib", "same one.pkl", "triple.onnx") as command:
        command.wait_until_serving()
        printed = command.printed()
        assert "prices.joblib is unpickled, which runs code that is in it: serve only files that you trust." in printed
        assert ask(command, "/predictions/prices", [[3, 4]]) == pytest.approx([3.0])
        assert ask(command, "/predictions/same_one", [[3, 4]]) == pytest.approx([3.0])
        metadata = requests.get(f"{command.base}/v2/models/triple", timeout=DEADLINE).json()
        (given,) = metadata["inputs"]
        request = {"inputs": [{**given, "shape": [1, 1], "data": [1.5]}]}
        (tripled,) = ask(command, "/v2/models/triple/infer", request)["outputs"]
        assert ask(command, "/predictions/triple", [[1.5]]) == {tripled["name"]: [[4.5]]}
        assert (tripled["data"], [each["name"] for each in metadata["outputs"]]) == ([4.5], [tripled["name"]])
        tensor = {"name": "rows", "shape": [1, 2], "datatype": "FP64", "data": [3, 4]}
        (output,) = ask(command, "/v2/models/prices/infer", {"inputs": [tensor]})["outputs"]
        assert output["data"] == pytest.approx([3.0])
