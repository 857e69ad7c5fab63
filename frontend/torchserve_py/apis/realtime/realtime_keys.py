"""The keys of `model-config.yaml` for models that transcribe audio while it arrives, or converse."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import ClosedSchema, key
from torchserve_py.base.settings.schemas.values import Flag, Nested, Text
from torchserve_py.core.serving.serving import ServedModel

_VOICES: Final = Nested("a map of voices, for example {marin: en-us}")
_PIPELINE: Final = Nested("a map of models, for example {transcriber: transcribe}, or {}")


class RealtimePipeline(ClosedSchema):
    """The `realtimePipeline` map: the models with which a chat model converses; each is served under its name."""

    voice_activity: Text = key("voiceActivity", "the model that detects speech; without one, clients commit the audio")
    transcriber: Text = key("transcriber", "the model with `realtime: true` that writes speech down")
    synthesizer: Text = key("synthesizer", "the model that speaks; without one, answers are text")
    voices: Annotated[dict[str, str] | None, _VOICES] = key(
        "voices",
        "the synthesizer's voices by the names that clients use; `*`: all other names",
        "clients name the synthesizer's own",
    )


class RealtimeKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has two keys."""

    handlers_only: ClassVar[str] = "its code keeps no state between the requests of a sequence"

    realtime: Flag = key(
        "realtime",
        "the handler transcribes audio for [OpenAI's realtime API](speech.md#realtime-transcription); needs"
        " `sequenceBatching`",
        "`false`",
    )
    realtime_pipeline: Annotated[RealtimePipeline | None, _PIPELINE] = key(
        "realtimePipeline",
        "the models with which this chat model [converses](speech.md#conversations); needs `openai`",
    )

    def contradictions(self, given: Mapping[Any, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield what is wrong if the model keeps no sequences."""
        if self.realtime and not given.get("sequenceBatching"):
            why = "realtime is true but sequenceBatching is not; the audio of a session is a sequence, so set both"
            yield ("realtime", "sequenceBatching"), why


def transcribes(model: ServedModel) -> bool:
    """Return whether a model transcribes audio that arrives piece by piece."""
    return bool(model.config.plugin_keys.of(RealtimeKeys).realtime)
