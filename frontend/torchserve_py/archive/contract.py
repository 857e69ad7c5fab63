"""The contract of a model: how its code is called, told by the files that it consists of."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

TORCHSERVE: Final = "torchserve"
TRUSS: Final = "truss"
MLSERVER: Final = "mlserver"

MLSERVER_SETTINGS: Final = "model-settings.json"
TRUSS_CONFIG: Final = "config.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What the code of a contract can do, and so what a configuration may ask of it."""

    name: str
    platform: str  # the contract's name in the Open Inference Protocol
    batches: bool = False  # one call takes several requests; otherwise each request is a call, and many run at once
    own_keys: frozenset[str] = frozenset()  # further keys of model-config.yaml that the code reads
    #: The manifest or the registration names a handler file; the handler may describe the model, and a service envelope
    #: may unpack its requests. Only for handlers may model-config.yaml ask for steps, sequences, several processes,
    #: declared inputs and outputs, warm-up, and OpenAI's paths.
    handlers: bool = False
    own_health: bool = False  # the code says whether it is healthy
    own_routes: bool = False  # the code may declare paths of its own
    truss_api: bool = False  # the model answers at the paths of Truss
    parameters: bool = False  # the model's metadata have parameters
    mlserver_metrics: bool = False  # MLServer's metrics show the model, too
    packages: tuple[str, ...] = ()  # what workers import; the extra of the contract's name installs these
    external_packages: bool = False  # the configuration may name folders outside of the model's to pack


CONTRACTS: Final[Mapping[str, Contract]] = {
    each.name: each
    for each in (
        Contract(
            name=TORCHSERVE,
            batches=True,
            own_keys=frozenset({"pt2", "handler", "dali", "deepspeed", "pippy", "micro_batching"}),
            handlers=True,
            platform="pytorch_torchserve",
        ),
        Contract(
            name=TRUSS,
            own_keys=frozenset({"truss"}),
            own_health=True,
            truss_api=True,
            platform="python_truss",
            packages=("starlette", "fastapi", "pydantic"),
            external_packages=True,
        ),
        Contract(
            name=MLSERVER,
            own_health=True,
            own_routes=True,
            parameters=True,
            mlserver_metrics=True,
            platform="python_mlserver",
            packages=("mlserver",),
        ),
    )
}


def contract_of(names: Collection[str]) -> str:
    """The contract of the model in a folder whose entries are called ``names``, where no manifest names a handler.

    `model-settings.json` makes it an MLServer model. `config.yaml` makes it a Truss, unless there is a handler, which
    may well have a file of that name.
    """
    if MLSERVER_SETTINGS in names:
        return MLSERVER
    has_handler = any(name.endswith(".py") and "handler" in name for name in names)
    return TRUSS if TRUSS_CONFIG in names and not has_handler else TORCHSERVE
