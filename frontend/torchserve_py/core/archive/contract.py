"""What the code of a contract can do. The contract of a model is how its code is called."""

from dataclasses import dataclass
from typing import Final

TORCHSERVE: Final = "torchserve"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What the code of a contract can do, and so what a configuration may ask of it."""

    name: str
    platform: str  # the contract's name in the Open Inference Protocol
    file: str = ""  # the file that tells that a folder holds a model of this contract
    other_files: tuple[str, ...] = ()  # files that tell the same
    unless_handler: bool = False  # not if a handler is there, which may well have a file of that name
    without_code: bool = False  # also that of a folder with weights and no code
    unless_default_handler: bool = False  # not if default_service_handler names one, which may call the file itself
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
    packages: tuple[str, ...] = ()  # what workers import; the extra of the contract's name installs these
    external_packages: bool = False  # the configuration may name folders outside of the model's to pack


#: TorchServe's handlers, the one contract that needs no plugin.
HANDLERS: Final = Contract(
    name=TORCHSERVE,
    batches=True,
    own_keys=frozenset({"pt2", "handler", "dali", "deepspeed", "pippy", "micro_batching"}),
    handlers=True,
    platform="pytorch_torchserve",
)
