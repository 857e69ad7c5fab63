"""The built-in handler ``image_segmenter``: an image to the class of each of its pixels."""

from typing import Any

import torch

from ts.handler_utils.timer import timed
from ts.torch_handler.image_transforms import imagenet_input
from ts.torch_handler.vision_handler import VisionHandler


class ImageSegmenter(VisionHandler):
    """Serves a model that takes images of shape [N, 3, 224, 224] and returns ``{"out": [N, classes, H, W]}``."""

    image_processing = staticmethod(imagenet_input)

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """Return for every image a list of shape [H, W, 2]: the most probable class of a pixel, its probability."""
        best = torch.max(torch.nn.functional.softmax(data["out"], dim=1), dim=1)
        pixels = torch.stack([best.indices.to(best.values.dtype), best.values], dim=3)
        return list(pixels.tolist())
