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
    """What the code of a contract can do, and so what a configuration may ask of it.

    ``batches``: one call takes several requests, which the server puts together; where it does not, each request is a
    call of its own, many at once. ``steps``: requests join and leave between the steps of a loop (continuous batching).
    ``sequences``: state is kept between requests, which run in order, one at a time. ``stores``: that state can be
    stored beneath the code. ``processes``: a worker may be several processes that compute together. ``declares``:
    `model-config.yaml` may declare its inputs and outputs. ``openai``: it may declare that the code answers OpenAI's
    requests, whose path it is told. ``own_keys``: further keys of that file that its code reads. ``handlers``: a file
    of the model, named by the manifest or the registration, has its handler, which may describe the model.
    ``envelopes``: a service envelope may unpack its requests. ``own_health``: the code says whether it is healthy.
    ``own_routes``: the code may declare paths of its own. ``truss_api``: it answers at the paths of Truss.
    ``parameters``: its metadata have parameters. ``mlserver_metrics``: it is counted in MLServer's metrics, too.
    ``platform``: what the Open Inference Protocol calls it. ``packages``: what its workers import, which the extra of
    the contract's name brings. ``external_packages``: its configuration may name folders elsewhere to pack.
    """

    name: str
    batches: bool = False
    steps: bool = False
    sequences: bool = False
    stores: bool = False
    processes: bool = False
    declares: bool = False
    openai: bool = False
    own_keys: frozenset[str] = frozenset()
    handlers: bool = False
    envelopes: bool = False
    own_health: bool = False
    own_routes: bool = False
    truss_api: bool = False
    parameters: bool = False
    mlserver_metrics: bool = False
    platform: str
    packages: tuple[str, ...] = ()
    external_packages: bool = False


CONTRACTS: Final[Mapping[str, Contract]] = {
    each.name: each
    for each in (
        Contract(
            name=TORCHSERVE,
            batches=True,
            steps=True,
            sequences=True,
            stores=True,
            processes=True,
            declares=True,
            openai=True,
            own_keys=frozenset({"pt2", "handler", "dali", "deepspeed", "pippy", "micro_batching"}),
            handlers=True,
            envelopes=True,
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
