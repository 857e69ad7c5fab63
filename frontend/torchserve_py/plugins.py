"""Finds the plugins: those that come with the server, and those of other packages."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from torchserve_py.plugin_api import ContractOffer, LauncherOffer, Plugin, PluginUnavailable, StoreOffer

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
    from torchserve_py.base.settings.table import Settings, SettingsSection
    from torchserve_py.endpoints.token_authorization import Authorization

#: The entry points by which other packages offer a `Plugin`.
ENTRY_POINTS: Final = "torchserve_py.plugins"
#: The folders in `torchserve_py` that have one. If endpoints of two have the same path, the first gets the request.
BUILT_IN: Final = (
    "apis.open_inference",
    "contracts.truss",
    "contracts.mlserver",
    "contracts.mlflow",
    "contracts.sagemaker",
    "apis.openai",
    "apis.realtime",
    "apis.openpi",
    "apis.gr00t",
    "apis.kserve",
    "apis.sagemaker",
    "apis.bookmarks",
    "apis.live",
    "ops.keys",
    "ops.browser_guard",
    "endpoints.management",
    "versions.traffic",
    "versions.rollout",
    "apis.workflows",
    "tools.console",
    "tools.docs_page",
    "apis.grpc",
    "ops.tracing",
    "contracts.served_functions",
    "sequences.steps",
    "sequences.sqlite",
    "sequences.redis",
    "core.torchrun",
    "fleet.ray",
    "ops.system_metrics",
    "tools.quickstart",
    "tools.operator_tools",
    "contracts.warm_up",
    "contracts.computing",
    "fleet.saved_models",
    "tools.journal",
    "tools.replay",
    "core.confinement",
    "core.forking",
    "ops.tls",
    "fleet.scaling",
    "fleet.memory_budget",
    "apis.probes",
    "ops.metrics",
)


@cache
def plugins() -> Sequence[Plugin]:
    """Return all plugins, those that come with the server first.

    Raises PluginUnavailable: a plugin of another package cannot be imported, or has the name of another one.
    """
    found = [importlib.import_module(f"torchserve_py.{name}.plugin").PLUGIN for name in BUILT_IN]
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda each: each.name):
        try:
            plugin = entry.load()
        except Exception as error:
            text = f"The plugin {entry.name} ({entry.value}) cannot be imported: {type(error).__name__}: {error}"
            raise PluginUnavailable(text) from error
        if not isinstance(plugin, Plugin):
            text = f"The plugin {entry.name} ({entry.value}) is a {type(plugin).__name__}; it must be a Plugin."
            raise PluginUnavailable(text)
        found.append(plugin)
    names = [plugin.name for plugin in found]
    for plugin in found:
        if names.count(plugin.name) > 1:
            raise PluginUnavailable(f"Two plugins are called {plugin.name!r}; uninstall or rename one.")
    return found


@cache
def stores() -> Mapping[str, StoreOffer]:
    """Return the stores for states of sequences, by their names in ``handler.cache.store``."""
    return {name: offer for plugin in plugins() for name, offer in plugin.stores.items()}


@cache
def contracts() -> Mapping[str, ContractOffer]:
    """Return the kinds of model code besides TorchServe's handlers, by name."""
    return {name: offer for plugin in plugins() for name, offer in plugin.contracts.items()}


@cache
def launchers() -> Mapping[str, LauncherOffer]:
    """Return what starts workers on other machines, by what `worker_launcher` says."""
    return {name: offer for plugin in plugins() for name, offer in plugin.launchers.items()}


@cache
def settings_sections() -> Sequence[type[SettingsSection]]:
    """Return the sections of settings that plugins have."""
    return [plugin.settings() for plugin in plugins() if plugin.settings is not None]


@cache
def model_config_keys() -> Sequence[type[ModelConfigKeys]]:
    """Return the schemas of the keys of `model-config.yaml` that plugins have."""
    return [plugin.model_config() for plugin in plugins() if plugin.model_config is not None]


def authorization(settings: Settings) -> Authorization | None:
    """Return the keys of a server; None if its settings let everybody use it.

    Those of another package take the place of the server's own.

    Raises PluginUnavailable: the keys cannot be had; OSError: their file cannot be written.
    """
    if settings.disable_token_authorization:
        return None
    for plugin in reversed(plugins()):
        if plugin.authorization is not None:
            return plugin.authorization(settings)
    raise PluginUnavailable("Token authorization is on, and no plugin has keys; --disable-token-auth lets all in.")
