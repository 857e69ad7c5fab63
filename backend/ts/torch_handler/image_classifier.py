"""The built-in handler ``image_classifier``: an image to the most probable classes."""

from typing import Any

import torch

from ts.handler_utils.timer import timed
from ts.torch_handler.image_transforms import imagenet_input
from ts.torch_handler.vision_handler import VisionHandler
from ts.utils.util import map_class_to_label


class ImageClassifier(VisionHandler):
    """Serves a model from images of shape [N, 3, 224, 224] to the logits of their classes, [N, classes]."""

    topk = 5
    image_processing = staticmethod(imagenet_input)

    def set_max_result_classes(self, topk: int) -> None:
        """Set how many classes an answer names."""
        self.topk = topk

    def get_max_result_classes(self) -> int:
        """Return how many classes an answer names."""
        return self.topk

    @timed
    def postprocess(self, data: Any) -> list[dict[str, float]]:
        """Return for every image a dict from class to probability, the most probable first."""
        probabilities = torch.nn.functional.softmax(data, dim=1)
        values, classes = torch.topk(probabilities, min(self.topk, probabilities.shape[1]), dim=1)
        return map_class_to_label(values.tolist(), self.mapping, classes.tolist())
