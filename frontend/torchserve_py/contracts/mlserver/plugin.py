"""MLServer's runtimes: the files that configure them."""

from torchserve_py.contracts.mlserver.mlserver_kind import MLSERVER
from torchserve_py.plugin_api import ContractOffer, Plugin, SchemaOffer


def _model_settings() -> SchemaOffer:
    from torchserve_py.contracts.mlserver.mlserver_contract import ModelSettings

    return SchemaOffer("model-settings.json", ModelSettings)


def _server_settings() -> SchemaOffer:
    from torchserve_py.contracts.mlserver.mlserver_contract import ServerSettings

    return SchemaOffer("settings.json", ServerSettings)


PLUGIN = Plugin(
    name="mlserver",
    schemas={"mlserver-model": _model_settings, "mlserver-server": _server_settings},
    contracts={
        "mlserver": ContractOffer(
            MLSERVER,
            "torchserve_py.contracts.mlserver.mlserver_contract",
            "ts.contracts.mlserver.load_mlserver",
            "torchserve_py.contracts.mlserver.mlserver_metrics",
        )
    },
)
