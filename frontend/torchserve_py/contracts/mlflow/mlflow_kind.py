"""What the code of a model in MLflow's format can do, and the file by which it is told."""

from typing import Final

from torchserve_py.core.archive.contract import Contract

MLFLOW: Final = Contract(
    name="mlflow",
    platform="python_mlflow",
    file="MLmodel",
    unless_handler=True,
    batches=True,
    own_routes=True,
)
