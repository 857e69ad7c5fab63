"""The keys of `model-config.yaml` that plugins have."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from torchserve_py.base.settings.schemas.schema import Schema


class ModelConfigKeys(Schema):
    """The keys of one plugin.

    ``handlers_only`` says why only a model with a TorchServe handler may have them; without it all models may.
    ``prepares`` is the name of a module for workers, whose ``prepare`` (see `ts.runtime.loader.prepare`) is called
    before the model counts as loaded, if `for_worker` returns something.
    """

    handlers_only: ClassVar[str] = ""
    prepares: ClassVar[str] = ""

    def of_handlers(self, given: Mapping[Any, Any]) -> Iterable[tuple[str, object, str]]:
        """Yield each key that is set in the file, and that only handlers may have, with its value and the reason."""
        if self.handlers_only:
            for name, (key, value) in zip(self.key_names(), self, strict=True):
                if name in given and key in self.model_fields_set and value is not False:
                    shown = "true" if value is True else value if isinstance(value, str) else "set"
                    yield name, shown, self.handlers_only

    def contradictions(self, given: Mapping[Any, Any]) -> Iterable[tuple[tuple[str, ...], str]]:
        """Yield the keys and the message for settings that contradict others of the file, which has ``given``."""
        return ()

    def doubts(self, given: Mapping[Any, Any]) -> Iterable[str]:
        """Yield a warning for each setting that has no effect, or not the one that was probably meant."""
        return ()

    def unfit(self, batch_size: int, model_dir: Path) -> Iterable[str]:
        """Yield what is wrong with them for a model that runs batches of this size and has these files."""
        return ()

    @property
    def follows_load(self) -> bool:
        """Whether they ask that the number of workers follows the load."""
        return False

    def for_worker(self, batch_size: int) -> Any:
        """Return what ``prepare`` in workers gets; None: there is nothing to prepare."""
        return None


S = TypeVar("S", bound=ModelConfigKeys)


@dataclass(frozen=True, slots=True)
class PluginKeys:
    """What `model-config.yaml` says under the keys of plugins, one value for each schema that a plugin offers."""

    values: tuple[ModelConfigKeys, ...] = ()

    def of(self, schema: type[S]) -> S:
        """Return the values of one plugin's keys; without a file, what holds where a key is not given."""
        for each in self.values:
            if isinstance(each, schema):
                return each
        nothing: S = _without_a_file(schema)
        return nothing


@cache
def _without_a_file(schema: type[S]) -> S:
    return schema()
