"""Models that MLflow has saved, served from their folders and asked as MLflow's own server is, with the same answers.

python -m tests.moves_in.mlflow_models, in an environment with MLflow, PyTorch and scikit-learn.
"""

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
import numpy as np
import pandas as pd
import requests
import torch
import uvicorn
from mlflow.pyfunc import scoring_server
from mlflow.pyfunc.scoring_server.client import ScoringServerClient
from sklearn.linear_model import LinearRegression
from tests.e2e.running_server import DEADLINE, RunningServer, eventually
from tests.ports import free_ports

JSON, CSV = "application/json", "text/csv"
ROWS = [[1.0, 2.0], [3.0, 4.5]]
TABLE = pd.DataFrame(ROWS, columns=["a", "b"])


class Exchange(NamedTuple):
    """A request, whose answer is MLflow's with this status."""

    body: Any
    content_type: str = JSON
    status: int = 200


TABLES = [
    Exchange({"dataframe_split": TABLE.to_dict("split")}),
    Exchange({"dataframe_records": TABLE.to_dict("records")}),
    Exchange(TABLE.to_csv(index=False), CSV),
    Exchange({"dataframe_split": 7}, status=400),
    Exchange({"dataframe_split": {}, "instances": []}, status=400),
    Exchange(TABLE.to_csv(index=False), "text/xml", 415),
]
ARRAYS = [
    Exchange({"instances": ROWS}),
    Exchange({"inputs": ROWS}),
    Exchange({"inputs": [["a"]]}, status=400),
    Exchange("{", status=400),
    Exchange([1], status=400),
]


def save_models(folder: Path) -> dict[str, list[Exchange]]:
    """Save a model of each flavour; return what it is asked, by its name."""
    module = torch.nn.Linear(2, 1).double()
    mlflow.pytorch.save_model(module, folder / "pytorch", serialization_format="pickle")
    regression = LinearRegression().fit(TABLE, [1.0, 2.0])
    signature = mlflow.models.infer_signature(TABLE, regression.predict(TABLE))
    mlflow.sklearn.save_model(regression, folder / "sklearn", signature=signature, serialization_format="cloudpickle")
    mlflow.pyfunc.save_model(folder / "pyfunc", python_model=Describing())
    everything = [*TABLES, *ARRAYS]
    with_parameters = Exchange({"inputs": ROWS, "params": {"x": 1}})
    return {"pytorch": ARRAYS, "sklearn": TABLES, "pyfunc": [*everything, with_parameters]}


class Describing(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """Tells what it gets."""

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        """Return the numbers as they came, with their type."""
        return {"type": type(model_input).__name__, "sum": float(np.asarray(model_input).sum()), "params": params}


@contextmanager
def mlflows_own(folder: Path) -> Iterator[str]:
    """Serve a model with MLflow's own server; yield its address."""
    (port,) = free_ports(1)
    app = scoring_server.init(mlflow.pyfunc.load_model(str(folder)))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started, "MLflow's server runs")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def ask(address: str, exchange: Exchange) -> tuple[int, str, Any]:
    """Return status, content type and content of an answer; of an error without its texts, which name sets."""
    body = exchange.body if isinstance(exchange.body, str) else json.dumps(exchange.body)
    headers = {"Content-Type": exchange.content_type}
    answer = requests.post(f"{address}/invocations", body, headers=headers, timeout=DEADLINE)
    kind = answer.headers["Content-Type"].partition(";")[0]
    if kind != JSON:
        return answer.status_code, kind, answer.text
    content = answer.json()
    return answer.status_code, kind, {key: content[key] for key in content if key not in ("stack_trace", "message")}


def main() -> None:
    """Serve each model, and ask it as MLflow's server."""
    print(*(f"{name} {version(name)}" for name in ("mlflow", "torch", "scikit-learn")), sep=", ")
    folder = Path(tempfile.mkdtemp())
    for name, exchanges in save_models(folder).items():
        with RunningServer({name: folder / name}) as server, mlflows_own(folder / name) as own:
            server.wait_ready()
            for exchange in exchanges:
                expected = ask(own, exchange)
                assert expected[0] == exchange.status, (name, exchange, expected)
                assert ask(server.inference, exchange) == expected, (name, exchange, ask(server.inference, exchange))
            client = ScoringServerClient("127.0.0.1", int(server.inference.rpartition(":")[2]))
            client.ping()
            assert client.get_version() == version("mlflow")
            print(f"{name}: {len(exchanges)} answers as MLflow's own, of MLflow's client {invoked(client, name)}")


def invoked(client: ScoringServerClient, name: str) -> Any:
    """Return what MLflow's client gets for a table or an array."""
    return client.invoke(np.asarray(ROWS) if name == "pytorch" else TABLE).get_predictions().to_dict()


if __name__ == "__main__":
    main()
