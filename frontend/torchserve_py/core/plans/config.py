"""`model-config.yaml`: the model author's configuration of how the model is run.

The handler reads the same file, so keys that the server does not know are left to the handler. The keys that the server
knows (TorchServe's, and `onExpiredSequence`) are checked strictly: a wrong type, a value out of range or two settings
that contradict each other are refused with all problems named at once, instead of being ignored until the first
request fails. `docs/model-config.md` describes every key.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from torchserve_py.base.settings.schemas.model_config import ModelConfigFile
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.base.settings.schemas.schema import Schema, read
from torchserve_py.base.settings.schemas.yaml_mapping import UnreadableYaml, YamlMapping, read_yaml_mapping
from torchserve_py.core.archive.contract import TORCHSERVE, Contract
from torchserve_py.core.archive.contracts import known_contracts
from torchserve_py.core.plans.contradictions import code_keys, contradictions
from torchserve_py.core.torchrun.torchrun import processes
from torchserve_py.plugins import model_config_keys

_MAX_PROBLEMS = 20


class InvalidModelConfig(ValueError):
    """The file cannot be used.

    `problems` has one line per problem, the first `_MAX_PROBLEMS` of them; `str()` joins these lines.
    """

    def __init__(self, source: str, problems: Iterable[str]) -> None:
        listed = list(itertools.islice(problems, _MAX_PROBLEMS + 1))
        if len(listed) > _MAX_PROBLEMS:
            listed[-1] = "there are more problems"
        super().__init__(f"{source}: " + "; ".join(listed))
        self.source = source
        self.problems = tuple(listed)


class ModelConfig(ModelConfigFile):
    """One `model-config.yaml`, read and checked. None = the key is not in the file."""

    source: str = "model-config.yaml"  # the file's name
    #: The whole file, as the handler gets it in `context.model_yaml_config`.
    raw: Mapping[Any, Any] = Field(default_factory=dict, repr=False)
    #: What it says under the keys of plugins.
    plugin_keys: PluginKeys = PluginKeys()
    warnings: tuple[str, ...] = ()  # settings that are allowed but probably unintended, one line each

    @property
    def ranks_asked_for(self) -> int | None:
        """How many processes a worker is to have by the key `torchrun`, see `torchrun.processes`."""
        return processes(self.plugin_keys)

    @property
    def asks_for_scaling(self) -> bool:
        """Whether the number of workers is to follow the load."""
        return any(keys.follows_load for keys in self.plugin_keys.values)

    def completed(self, warnings: Iterable[str], **values: Any) -> Self:
        """Return a copy with further warnings, and with other values of some fields."""
        return self.model_copy(update={**values, "warnings": (*self.warnings, *warnings)})


#: Between two steps of most clients lies more time.
_SHORT_IDLE_MS = 1000
_SEQUENCE_KEYS = (
    "sequenceMaxIdleMSec",
    "sequenceTimeoutMSec",
    "maxSequenceJobQueueSize",
    "maxNumSequence",
    "deadlineSafety",
    "onExpiredSequence",
    "requireStart",
    "rememberEndedSec",
)


def read_model_config(path: Path, contract: str = TORCHSERVE) -> ModelConfig:
    """Read, check and return the configuration file at `path` of a model with that contract.

    Raises InvalidModelConfig: the file cannot be read or has problems; all of them are named.
    """
    return parse_model_config(read_mapping(path), path.name, contract)


def read_mapping(path: Path, *, last_wins: bool = False) -> YamlMapping:
    """Read a YAML file as `read_yaml_mapping` does. Raises InvalidModelConfig: the file cannot be read."""
    try:
        return read_yaml_mapping(path, last_wins=last_wins)
    except UnreadableYaml as error:
        raise InvalidModelConfig(path.name, [str(error)]) from error
    except OSError as error:
        raise InvalidModelConfig(path.name, [f"the file cannot be read: {error.strerror or error}"]) from error


def parse_model_config(
    mapping: YamlMapping, source: str = "model-config.yaml", contract: str = TORCHSERVE
) -> ModelConfig:
    """Check a mapping that was read from `source` for a model with that contract, and return it as a configuration.

    Raises InvalidModelConfig: the mapping has problems; all of them are named.
    """
    values, refused = read(ModelConfigFile, mapping.values, lines=mapping.lines)
    of_plugins = []
    for schema in model_config_keys():
        own, wrong = read(schema, mapping.values, lines=mapping.lines)
        if own.model_fields_set:
            of_plugins.append(own)
        refused |= wrong
    warnings = [*_misspelt(mapping.values), *(doubt for own in of_plugins for doubt in own.doubts(mapping.values))]
    keys = PluginKeys(tuple(of_plugins))
    config = ModelConfig.model_construct(**dict(values), source=source, raw=mapping.values, plugin_keys=keys)
    can = known_contracts()[contract]
    problems = list(refused.values())
    for names, text in contradictions(config, can):
        if refused.keys().isdisjoint(names):
            is_deep = len(names) == 1 and names[0].count(".") > 1  # such as handler.cache.url
            line = mapping.lines.get(names[0].partition(".")[0]) if is_deep else None
            problems.append(f"line {line}: {text}" if line else text)
    if problems:
        raise InvalidModelConfig(source, problems)
    return config.completed([*warnings, *_without_effect(config, can)])


def _without_effect(config: ModelConfig, contract: Contract) -> Iterator[str]:
    """Yield a warning for each allowed combination of settings in which one has no effect."""
    if not config.sequence_batching:
        unused = [name for name in _SEQUENCE_KEYS if config.raw.get(name)]
        if unused:
            yield f"{', '.join(unused)} has no effect because sequenceBatching is not true"
    elif (idle := config.sequence_max_idle_ms) is not None and idle < _SHORT_IDLE_MS:
        afterwards = "begins a new one, with no state" if config.on_expired_sequence == "restart" else "gets 410"
        yield (
            f"sequenceMaxIdleMSec is {idle}: a sequence ends {idle} ms after its last answer, so the next request of"
            f" most clients comes too late and {afterwards}; 60000 would be a minute"
        )
    if config.sequence_batching and config.max_num_sequence is None and not config.async_communication:
        room = config.batch_size or 1
        yield (
            f"maxNumSequence is not set: only {room} sequence{'s' * (room > 1)} can be open at a time for each worker,"
            " and a request that begins one more gets 503; 1000 would allow a thousand"
        )
    if config.concurrency_target and contract.batches and not config.async_communication:
        yield "concurrencyTarget has no effect because asyncCommunication is not true"
    if config.max_batch_delay_ms and not contract.batches:
        yield f"maxBatchDelay has no effect because requests of the contract {contract.name} are calls of their own"
    if config.use_job_ticket and config.sequence_batching:
        yield "useJobTicket is ignored for a model with sequenceBatching"
    elif config.use_job_ticket and (config.batch_size or 1) > 1:
        yield f"batchSize {config.batch_size} has no effect: useJobTicket takes a request only while a worker is idle"
    timeout = config.client_timeout_ms
    if timeout and config.max_batch_delay_ms and config.max_batch_delay_ms >= timeout and (config.batch_size or 1) > 1:
        yield (
            f"clientTimeoutInMills is {timeout} but maxBatchDelay is {config.max_batch_delay_ms}: "
            "a request that waits for its batch to fill expires first"
        )


def _misspelt(values: Mapping[Any, Any]) -> Iterator[str]:
    """Yield a warning for each unknown key that resembles a known one."""
    schemas: tuple[type[Schema], ...] = (ModelConfigFile, *model_config_keys())
    known = {_plain(key): key for schema in schemas for key in schema.key_names()}
    unknown = [name for name in values if isinstance(name, str) and name not in {*known.values(), *code_keys()}]
    if unknown:
        from difflib import get_close_matches  # imported only on need: it takes 5 ms

        for name in unknown:
            for match in get_close_matches(_plain(name), known, n=1, cutoff=0.8):
                yield f"{name} is not a key that the server reads; did you mean {known[match]}?"


def _plain(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()
