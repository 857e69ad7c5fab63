"""Loads a model in MLflow's format, whose requests MLflow's own code reads."""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, Final

from ts.connection.frontend_connection import FrontendConnection
from ts.connection.heartbeat import Heartbeat
from ts.contracts.mlflow.mlflow_handler import VERSION
from ts.contracts.sagemaker.load_sagemaker import ScriptRuntime
from ts.jobs.errors import LoadError
from ts.jobs.row import Row, RowReader
from ts.process.worker import load_handler
from ts.protocol.messages import CUSTOM, InferRow, Load

_HANDLER: Final = "ts.contracts.mlflow.mlflow_handler"


def load(
    load: Load, connection: FrontendConnection, heartbeat: Heartbeat
) -> tuple[Callable[[], None], Mapping[str, Any]]:
    """Load a model, see `ts.process.worker.load_model`. Raises LoadError: its worker's Python has no MLflow."""
    if importlib.util.find_spec("mlflow") is None:
        raise LoadError(
            "A model in MLflow's format needs the package mlflow, which its worker's Python does not have: pip install"
            " mlflow, or let the server install the model's requirements (install_py_dep_per_model)"
        )
    load["handler"], load["envelope"] = _HANDLER, None
    return load_handler(load, connection, heartbeat, MlflowRuntime)


class MlflowRuntime(ScriptRuntime):
    """Gives each request to MLflow in a call of its own, with the body as it came."""

    @property
    def declares(self) -> dict[str, Any]:
        return {**super().declares, "routes": [[f"/{VERSION}", ["GET"], VERSION]]}

    def _find_reader(self, protocol: str | None) -> RowReader:
        return _read_version if protocol == CUSTOM else super()._find_reader(protocol)


def _read_version(row: InferRow) -> Row:
    """Return the row of a request for MLflow's version, the only route that is declared."""
    return Row(row.job_id, {VERSION: b""}, row.headers, [])
