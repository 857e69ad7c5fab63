"""The settings of the Open Inference Protocol."""

from typing import Annotated, Literal

from torchserve_py.base.settings import value_kinds as kinds
from torchserve_py.base.settings.schemas.values import FLAG, MAX_LONG, choice, integer
from torchserve_py.base.settings.table import SettingsSection, Source, setting


class OpenInferenceSettings(SettingsSection):
    """The settings of the Open Inference Protocol."""

    shared_memory_keys: Annotated[tuple[str, ...], kinds.WORDS] = setting(
        (), "shared memory objects that clients may register; `*` stands for any text", "none"
    )
    open_inference_rows: Annotated[Literal["tensors", "body"], choice("tensors", "body")] = setting(
        "tensors",
        "what handlers get for `/v2/models/{model}/infer`: each tensor, or, [as from"
        " TorchServe](open-inference.md#torchserve-handlers), the JSON as `body`",
    )
    ts_open_inference_protocol: Annotated[bool, FLAG, Source(env_always=True, env_word="oip")] = setting(
        False,
        "answer `GET /v2` as TorchServe does; the variable means yes with the value `oip`, else no",
    )
    response_compression_min_size: Annotated[int, integer(0, MAX_LONG, "bytes")] = setting(
        1024, "smallest Open Inference response to compress (gzip, deflate)"
    )
