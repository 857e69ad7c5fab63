"""The gRPC ports, with the services of TorchServe and of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import ListenerOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _listeners() -> Iterable[ListenerOffer]:
    from torchserve_py.apis.grpc.grpc_packages import check_grpc_packages

    check_grpc_packages()
    from torchserve_py.apis.grpc.grpc_listeners import start_grpc_listeners

    return [start_grpc_listeners]


def _settings() -> type[SettingsSection]:
    from torchserve_py.apis.grpc.grpc_settings import GrpcSettings

    return GrpcSettings


PLUGIN = Plugin(
    name="grpc",
    listeners=_listeners,
    settings=_settings,
)
