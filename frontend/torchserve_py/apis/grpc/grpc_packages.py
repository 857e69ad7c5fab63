"""Checks, before any endpoint opens, that the packages of the gRPC endpoints work together.

Generated code refuses, at its import, a protobuf that is older than the generator's; so another package that pins an
old protobuf keeps the gRPC endpoints from opening.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from torchserve_py.plugin_api import PluginUnavailable

_MODULES: Final = (
    "google.rpc.status_pb2",
    "torchserve_py.apis.grpc.protos.inference_pb2",
)
_DISTRIBUTIONS: Final = ("protobuf", "googleapis-common-protos")


def check_grpc_packages() -> None:
    """Import the packages; this takes long. Raises PluginUnavailable: one of them cannot be imported."""
    for module in _MODULES:
        try:
            importlib.import_module(module)
        except Exception as error:  # protobuf's own, an ImportError, or a TypeError of older versions
            reason = " ".join(str(error).split())
            versions = {name: _version(name) for name in _DISTRIBUTIONS}
            installed = ", ".join(f"{name} {found or '(missing)'}" for name, found in versions.items())
            pin = f"protobuf=={versions['protobuf']}" if versions["protobuf"] else "protobuf"
            raise PluginUnavailable(
                f"gRPC cannot start, because {module} cannot be imported: {type(error).__name__}: {reason}"
                f" Installed are {installed}. For versions that fit together:"
                f" pip install '{pin}' {' '.join(_DISTRIBUTIONS[1:])}"
            ) from error


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
