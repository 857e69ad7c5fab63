"""The key of `model-config.yaml` for models that transcribe audio while it arrives."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import key
from torchserve_py.base.settings.schemas.values import Flag
from torchserve_py.core.serving.serving import ServedModel


class RealtimeKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has one key."""

    handlers_only: ClassVar[str] = "its code keeps no state between the requests of a sequence"

    realtime: Flag = key(
        "realtime",
        "the handler transcribes audio for [OpenAI's realtime API](speech.md#realtime-transcription); needs"
        " `sequenceBatching`",
        "`false`",
    )

    def contradictions(self, given: Mapping[Any, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield what is wrong if the model keeps no sequences."""
        if self.realtime and not given.get("sequenceBatching"):
            why = "realtime is true but sequenceBatching is not; the audio of a session is a sequence, so set both"
            yield ("realtime", "sequenceBatching"), why


def transcribes(model: ServedModel) -> bool:
    """Return whether a model transcribes audio that arrives piece by piece."""
    return bool(model.config.plugin_keys.of(RealtimeKeys).realtime)
