"""Models in MLflow's format: a folder with a file ``MLmodel``."""

from torchserve_py.contracts.mlflow.mlflow_kind import MLFLOW
from torchserve_py.plugin_api import ContractOffer, Plugin

PLUGIN = Plugin(
    name="mlflow",
    contracts={
        "mlflow": ContractOffer(
            MLFLOW, "torchserve_py.contracts.mlflow.mlflow_contract", "ts.contracts.mlflow.load_mlflow"
        )
    },
)
