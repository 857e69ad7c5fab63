"""The key of `model-config.yaml` for policies of robots."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import key
from torchserve_py.base.settings.schemas.values import Expected, is_plain_map
from torchserve_py.core.serving.serving import ServedModel


class OpenpiKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has one key."""

    handlers_only: ClassVar[str] = "its code keeps no state between the requests of a sequence"

    openpi: Annotated[dict[str, Any] | None, Expected("a map of plain values", is_plain_map)] = key(
        "openpi",
        "a [robot policy](live-sessions.md#robots): metadata for clients; needs `sequenceBatching`",
        "none",
    )

    def contradictions(self, given: Mapping[Any, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield what is wrong if the model keeps no sequences."""
        if self.openpi is not None and not given.get("sequenceBatching"):
            why = "openpi is set but sequenceBatching is not true; an episode is a sequence, so set both"
            yield ("openpi", "sequenceBatching"), why


def metadata_of(model: ServedModel) -> Mapping[str, Any] | None:
    """Return what clients of a policy are told first; None for a model that is no policy."""
    return model.config.plugin_keys.of(OpenpiKeys).openpi
