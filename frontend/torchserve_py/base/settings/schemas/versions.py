"""What config.properties says of single model versions: the entries of `models`, and models as a server saves them."""

from typing import Annotated, Final

from pydantic import AfterValidator, ConfigDict, Field

from torchserve_py.base.settings.schemas.schema import Schema, key
from torchserve_py.base.settings.schemas.values import FLAG, MAX_INT, MAX_LONG, TEXT, AnyText, integer


def _at_least(minimum: int) -> AfterValidator:
    """A smaller integer counts as not given, as in TorchServe."""
    return AfterValidator(lambda value: None if value is None or value < minimum else value)


_AnyInteger = Annotated[int | None, integer(-MAX_INT - 1)]
AboveZero = Annotated[_AnyInteger, _at_least(1)]
FromZero = Annotated[_AnyInteger, _at_least(0)]


class VersionSettings(Schema):
    """An entry of `models`. Other keys are kept, although they have no effect: snapshots repeat them."""

    model_config = ConfigDict(extra="allow")

    min_workers: AboveZero = key("minWorkers", "workers to start")
    max_workers: AboveZero = key("maxWorkers", "the most workers")
    batch_size: AboveZero = key("batchSize", "requests in one call of the handler")
    max_batch_delay: AboveZero = key("maxBatchDelay", "milliseconds that a request may wait for a fuller batch")
    response_timeout: AboveZero = key("responseTimeout", "seconds that an inference may take")
    startup_timeout: AboveZero = key("startupTimeout", "seconds that loading the model may take")
    weight: FromZero = key("trafficWeight", "the version's share of the requests that name no version, 0 for none")
    runtime: AnyText = key("runtimeType", "the interpreter of the workers: `python` or `python3`")


#: The keys of an entry of `models`; the last three have an effect only in snapshots.
VERSION_KEYS: Final = (*VersionSettings.key_names(), "marName", "defaultVersion", "defaultVersionChosen")


class SavedModel(VersionSettings):
    """A served model as it is saved; what is None is settled by the model's own configuration.

    `location` is the archive or folder in the model store, or a folder by its absolute path. `handler` is the one that
    the registration named. `chosen` tells whether an operator has chosen the default version explicitly. `weight_until`
    is when the weight ends unless its judge moves that on (seconds since 1970), None for a weight that stays.
    """

    model_config = ConfigDict(extra="ignore")

    name: str = Field(default="", description="set from the place of the entry, as is the version")
    version: str = ""
    location: Annotated[str, TEXT] = Field(validation_alias="marName", serialization_alias="marName")
    default: Annotated[bool, FLAG] = key("defaultVersion", "requests without a version get this one", "", False)
    min_workers: FromZero = key("minWorkers", "workers to start")
    max_workers: FromZero = key("maxWorkers", "the most workers")
    max_batch_delay: FromZero = key("maxBatchDelay", "milliseconds that a request may wait for a fuller batch")
    parallel_level: Annotated[int, integer(0)] = key("parallelLevel", "written for TorchServe", "", 0)
    handler: AnyText = key("handler", "the handler")
    chosen: Annotated[bool, FLAG] = key("defaultVersionChosen", "an operator has chosen it", "", False)
    weight_until: Annotated[int | None, integer(0, MAX_LONG)] = key("trafficWeightUntil", "when the weight ends")
