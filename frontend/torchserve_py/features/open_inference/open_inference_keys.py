"""What handlers get for requests of the Open Inference Protocol: what a model says of it, and else the server."""

from typing import Annotated, ClassVar, Literal

from torchserve_py.features.open_inference.open_inference_settings import OpenInferenceSettings
from torchserve_py.settings.schemas.plugin_keys import ModelConfigKeys, PluginKeys
from torchserve_py.settings.schemas.schema import key
from torchserve_py.settings.schemas.values import choice
from torchserve_py.settings.table import Settings


class OpenInferenceKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this feature has one key."""

    handlers_only: ClassVar[str] = "its code has a form of its own for these requests"

    open_inference_rows: Annotated[Literal["tensors", "body"] | None, choice("tensors", "body")] = key(
        "openInferenceRows",
        "what the handler gets for `/v2/models/{model}/infer`: a value for each tensor, or, as from TorchServe without "
        "an envelope, the JSON as `body`; what it returns is the answer then",
        "`open_inference_rows`",
    )


def gets_body(keys: PluginKeys, settings: Settings) -> bool:
    """Return whether a handler gets requests as TorchServe gives them to one without an envelope."""
    own = keys.of(OpenInferenceKeys).open_inference_rows
    return (own or settings.of(OpenInferenceSettings).open_inference_rows) == "body"
