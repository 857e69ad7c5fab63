"""Scripts for SageMaker: ``code/inference.py`` with ``model_fn`` and the other functions of its toolkit."""

from torchserve_py.contracts.sagemaker.sagemaker_kind import SAGEMAKER
from torchserve_py.plugin_api import ContractOffer, Plugin

PLUGIN = Plugin(
    name="sagemaker-scripts",
    contracts={
        "sagemaker": ContractOffer(
            SAGEMAKER,
            "torchserve_py.contracts.sagemaker.sagemaker_contract",
            "ts.contracts.sagemaker.load_sagemaker",
        )
    },
)
