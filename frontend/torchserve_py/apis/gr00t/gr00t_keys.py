"""The key of `model-config.yaml` for policies that GR00T's clients call."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import key
from torchserve_py.base.settings.schemas.values import Expected, is_plain_map
from torchserve_py.core.serving.serving import ServedModel


def _is_modality_config(value: object) -> bool:
    return isinstance(value, dict) and is_plain_map(value) and all(isinstance(each, dict) for each in value.values())


class Gr00tKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has one key."""

    handlers_only: ClassVar[str] = "its code keeps no state between the requests of a sequence"

    gr00t: Annotated[dict[str, Any] | None, Expected("a map of maps of plain values", _is_modality_config)] = key(
        "gr00t",
        "a policy for [GR00T's clients](live-sessions.md#gr00t): its modality configuration; needs `sequenceBatching`",
        "none",
    )

    def contradictions(self, given: Mapping[Any, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield what is wrong if the model keeps no sequences."""
        if self.gr00t is not None and not given.get("sequenceBatching"):
            why = "gr00t is set but sequenceBatching is not true; an episode is a sequence, so set both"
            yield ("gr00t", "sequenceBatching"), why


def modalities_of(model: ServedModel) -> Mapping[str, Any] | None:
    """Return the modality configuration of a policy; None for a model that is no policy for GR00T's clients."""
    return model.config.plugin_keys.of(Gr00tKeys).gr00t
