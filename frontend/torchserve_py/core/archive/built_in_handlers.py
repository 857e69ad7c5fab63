"""The names of TorchServe's built-in handlers, for which an archive has no file."""

from collections.abc import Mapping
from typing import Final

#: Each with the kind of input that it takes.
BUILT_IN_HANDLERS: Final[Mapping[str, str]] = {
    "base_handler": "anything",
    "text_classifier": "text",
    "image_classifier": "vision",
    "object_detector": "vision",
    "image_segmenter": "vision",
    "dali_image_classifier": "vision",
    "vllm_handler": "text",
    "trt_llm_handler": "text",
}
