"""What a model's configuration says for the Open Inference Protocol: its tensors, and what its handler gets."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from torchserve_py.apis.open_inference.declared_tensors import Tensors
from torchserve_py.apis.open_inference.open_inference_settings import OpenInferenceSettings
from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys, PluginKeys
from torchserve_py.base.settings.schemas.schema import key
from torchserve_py.base.settings.schemas.values import Flag, choice
from torchserve_py.base.settings.table import Settings

_DECLARED_BY_CODE: Final = "the model's own files and code declare its inputs and outputs"


class OpenInferenceKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has these keys."""

    handlers_only: ClassVar[str] = "its code has a form of its own for these requests"

    open_inference_rows: Annotated[Literal["tensors", "body"] | None, choice("tensors", "body")] = key(
        "openInferenceRows",
        "what the handler gets for `/v2/models/{model}/infer`, as in the [setting](configuration.md#models)",
        "`open_inference_rows`",
    )
    inputs: Tensors = key(
        "inputs",
        "tensors of a request, for [Open Inference](open-inference.md) metadata",
        "none",
    )
    outputs: Tensors = key("outputs", "tensors of a response; results get these names and datatypes", "none")
    decoupled: Flag = key(
        "decoupled",
        "metadata: a request can have several responses or none",
        "`false`",
    )

    def of_handlers(self, given: Mapping[Any, Any]) -> Iterable[tuple[str, object, str]]:
        """Yield the keys that are set, those of tensors with a reason of their own."""
        for name, shown, why in super().of_handlers(given):
            is_of_tensors = name != "openInferenceRows"
            yield (name, "set", _DECLARED_BY_CODE) if is_of_tensors else (name, shown, why)


def gets_body(keys: PluginKeys, settings: Settings) -> bool:
    """Return whether a handler gets requests as TorchServe gives them to one without an envelope."""
    own = keys.of(OpenInferenceKeys).open_inference_rows
    return (own or settings.of(OpenInferenceSettings).open_inference_rows) == "body"
