"""What a plugin offers the server.

The server's own plugins are folders with a module ``plugin`` that has a `Plugin` called ``PLUGIN``; other packages name
theirs as entry points. `torchserve_py.plugins` finds both.

What a plugin offers is made by functions that import what they need when they are called: a command line that only
prints its help must not wait for all endpoints.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torchserve_py.base.settings.addresses import Address
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
    from torchserve_py.base.settings.schemas.schema import Schema
    from torchserve_py.base.settings.table import Settings, SettingsSection
    from torchserve_py.core.archive.contract import Contract
    from torchserve_py.core.jobs.job_observer import JobObserver
    from torchserve_py.endpoints.routing import EndpointContext, Endpoints
    from torchserve_py.endpoints.token_authorization import Authorization


class PluginUnavailable(Exception):
    """A plugin cannot work in this installation, or not as the settings say.

    The message says why, and what would help.
    """


class EndpointsOffer(NamedTuple):
    """An endpoint, and the setting with the address of its listener, such as ``inference_address``."""

    listener: str
    make: Callable[[EndpointContext], Endpoints]


class Listener(Protocol):
    """Open ports of a plugin's own, with a protocol that no endpoint has."""

    @property
    def addresses(self) -> Mapping[str, Address]:
        """The setting of each port to the address in use."""
        ...

    async def close(self) -> None:
        """Accept no more, give answers that are being written a few seconds, and end the rest."""
        ...


#: Opens the ports. Raises ListenError: an address cannot be used; OSError: the TLS files cannot be used.
ListenerOffer = Callable[["EndpointContext"], Awaitable[Listener]]


class BackgroundOffer(NamedTuple):
    """Work beside the requests, from the server's start until its stop cancels it; ``what`` it does is for messages."""

    what: str
    work: Callable[[EndpointContext], Coroutine[None, None, None]]


class SchemaOffer(NamedTuple):
    """A file that users write: its name for people, and its schema."""

    title: str
    schema: type[Schema]


class ContractOffer(NamedTuple):
    """A kind of model code besides TorchServe's handlers.

    Attributes:
        contract: What its code can do, and the file by which a model of this kind is told.
        configure: The name of a module with ``configure(model_dir, yaml, store)``, which reads what the model's own
            files say; see `plans.contracts`.
        runtime: The name of a module for workers with ``load(load, connection, heartbeat)``; see
            `ts.process.worker.load_model`, and `ts.contracts.async_calls.event_loop` for code that is asynchronous.
        metrics: Empty, or the name of a module whose ``model_families()`` returns the
            `metrics.server_metrics.ModelFamilies` that show models of this kind, too.
    """

    contract: Contract
    configure: str
    runtime: str
    metrics: str = ""


class StoreOffer(NamedTuple):
    """A store for the states of sequences.

    Attributes:
        module: The name of a module for workers with ``open_store(settings, cache)``; see
            `ts.sequences.steps.stores.store`. For operators it has ``keeps(place)``, which tells whether it has
            a store at a path or URL, and ``open_maintenance(place, create)``; see `maintenance` there.
        keys: Which keys of ``handler.cache`` (`sequences.steps.cache_config`) it reads; the others are refused with it.
            It has none of its own: what it needs besides is part of its ``url``. One with a ``path`` keeps states in a
            file, for which the server has a default.
        problems: Gets ``handler.cache`` with defaults. Yields what is wrong: the name of a key, and why.
    """

    module: str
    keys: tuple[str, ...]
    problems: Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]] = lambda cache: ()


class LauncherOffer(NamedTuple):
    """What starts workers on other machines.

    Attributes:
        module: The name of a module with ``launcher(settings, listener)``, which returns the server's
            `workers.worker_launcher.Launcher`; ``problems(config)``, which yields a line for each thing in a model's
            configuration that this launcher cannot do; and ``share(keys)``, which returns the
            `workers.worker_launcher.NodeShare` of a model's worker after what its configuration says.
        where: Where workers run then, for the documentation of ``worker_launcher``.
        key: The key of ``model-config.yaml`` that is for this launcher, and refused while another one is chosen.
    """

    module: str
    where: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """What a plugin has.

    Attributes:
        name: What no other plugin is called.
        endpoints: Returns its endpoints. If two have the same path, the first gets the request. Raises
            PluginUnavailable.
        listeners: Returns what opens its ports. Raises PluginUnavailable.
        background: Returns what runs while the server does.
        commands: The commands of ``torchserve-py``, each with the name of its module, which has ``main(argv)`` and
            ``parser()``.
        schemas: What ``--schema`` prints, by the name that the flag takes.
        contracts: The kinds of model code that it runs, by name.
        stores: By what ``handler.cache.store`` says.
        launchers: By what the setting ``worker_launcher`` says.
        observer: Returns what follows every job, or None if the settings ask for nothing of the kind. Without one,
            jobs cost nothing more. Raises PluginUnavailable.
        authorization: Returns the keys of a server whose token authorization is on, in place of the server's own.
            Raises PluginUnavailable, OSError.
        settings: Returns the settings that only it reads. ``settings.of(schema)`` has their values.
        model_config: Returns the schema of its keys in ``model-config.yaml``; ``plugin_keys.of(schema)`` of a model's
            configuration has their values.
    """

    name: str
    endpoints: Callable[[], Iterable[EndpointsOffer]] = tuple
    listeners: Callable[[], Iterable[ListenerOffer]] = tuple
    background: Callable[[], Iterable[BackgroundOffer]] = tuple
    commands: Mapping[str, str] = field(default_factory=dict)
    schemas: Mapping[str, Callable[[], SchemaOffer]] = field(default_factory=dict)
    contracts: Mapping[str, ContractOffer] = field(default_factory=dict)
    stores: Mapping[str, StoreOffer] = field(default_factory=dict)
    launchers: Mapping[str, LauncherOffer] = field(default_factory=dict)
    observer: Callable[[Settings], JobObserver | None] = lambda settings: None
    authorization: Callable[[Settings], Authorization] | None = None
    settings: Callable[[], type[SettingsSection]] | None = None
    model_config: Callable[[], type[ModelConfigKeys]] | None = None
