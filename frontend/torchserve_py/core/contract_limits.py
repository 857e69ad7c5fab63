"""Refuses settings of `model-config.yaml` that the contract of the model's code does not support.

Without this check such a setting would have no effect, or half of one: sequences without stored state, or batches that
are never formed. `torchserve_py.archive.contract.Contract` says what each contract supports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from torchserve_py.archive.contract import CONTRACTS, Contract

if TYPE_CHECKING:
    from torchserve_py.core.config import ModelConfig

#: Keys that only the code of a contract reads, never the server.
CODE_KEYS: Final = frozenset(name for each in CONTRACTS.values() for name in each.own_keys)
_PARALLEL: Final = "the code of the model runs in one process; parallelType: custom gives it several GPUs"
_OPENAI: Final = "a Truss answers OpenAI's paths by methods of their names, and other code not at all"
_DECLARED_BY_CODE: Final = "the model's own files and code declare its inputs and outputs"


def contract_contradictions(config: ModelConfig, contract: Contract) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the key and the message for each setting that the contract does not support."""
    for name, value, why in _asked_in_vain(config, contract):
        yield (name,), f"{name} is {value} but the model's contract is {contract.name}: {why}; leave {name} out"


def _asked_in_vain(config: ModelConfig, contract: Contract) -> Iterator[tuple[str, object, str]]:
    """Yield each unsupported key that is set, with its value and the reason."""
    if not contract.batches:
        one = "each request is a call of its own"
        if (config.batch_size or 1) > 1:
            yield "batchSize", config.batch_size, one
        if config.async_communication is False:
            yield "asyncCommunication", "false", one
    if not contract.steps and config.continuous_batching:
        yield "continuousBatching", "true", "its code has no steps between which requests could join"
    if not contract.sequences and config.sequence_batching:
        yield "sequenceBatching", "true", "its code keeps no state between the requests of a sequence"
    if not contract.stores and config.cache is not None:
        yield "handler.cache", "set", "its code has no SequenceCache that could be stored"
    if not contract.processes:
        if config.parallel_type not in {None, "", "custom"}:
            yield "parallelType", config.parallel_type, _PARALLEL
        if config.torchrun is not None:
            yield "torchrun", "set", _PARALLEL
    if not contract.declares:
        for name, value in (("inputs", config.inputs), ("outputs", config.outputs), ("decoupled", config.decoupled)):
            if value:
                yield name, "set", _DECLARED_BY_CODE
    if config.openai and not contract.openai:
        yield "openai", "true", _OPENAI
    cache = {"handler"} if config.cache is not None else set()  # said above
    for name in sorted(CODE_KEYS - contract.own_keys - cache):
        if name in config.raw:
            owner = next(each.name for each in CONTRACTS.values() if name in each.own_keys)
            yield name, "set", f"only code of the contract {owner} reads it"
