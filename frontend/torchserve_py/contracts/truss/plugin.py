"""Trusses: their paths, their configuration, and the classes in their ``model`` module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.contracts.truss.truss_kind import TRUSS
from torchserve_py.plugin_api import ContractOffer, EndpointsOffer, Plugin, SchemaOffer

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.contracts.truss.truss_endpoints import TrussEndpoints

    return [EndpointsOffer("inference_address", TrussEndpoints)]


def _config() -> SchemaOffer:
    from torchserve_py.contracts.truss.truss_contract import TrussConfig

    return SchemaOffer("config.yaml of a Truss", TrussConfig)


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.contracts.truss.truss_contract import OptionsKey

    return OptionsKey


PLUGIN = Plugin(
    name="truss",
    endpoints=_endpoints,
    schemas={"truss": _config},
    contracts={
        "truss": ContractOffer(
            TRUSS,
            "torchserve_py.contracts.truss.truss_contract",
            "ts.contracts.truss.load_truss",
        )
    },
    model_config=_model_config,
)
