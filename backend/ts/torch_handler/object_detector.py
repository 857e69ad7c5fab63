"""The built-in handler ``object_detector``: an image to the objects in it and where they are."""

from typing import Any

import torch

from ts.handler_utils.timer import timed
from ts.jobs.device_copies import stack_on
from ts.torch_handler.image_transforms import to_tensor
from ts.torch_handler.vision_handler import VisionHandler
from ts.utils.util import map_class_to_label


class ObjectDetector(VisionHandler):
    """Serves a model that takes images of any size and returns for each ``{"boxes", "labels", "scores"}``.

    The model gets one tensor, [N, 3, H, W], or, where the images of a batch differ in size, a list of N tensors.
    """

    image_processing = staticmethod(to_tensor)
    threshold = 0.5  # the lowest score of an object in an answer

    @timed
    def preprocess(self, data: Any) -> Any:
        """Return the batch's images: one tensor if all have the same size, otherwise a list."""
        images = self.read_images(data)
        return stack_on(images, self.input_device) if len({image.shape for image in images}) == 1 else images

    @timed
    def postprocess(self, data: Any) -> list[list[dict[str, Any]]]:
        """Return for every image a list of ``{class: [x1, y1, x2, y2], "score": score}``."""
        return [self._objects(found) for found in data]

    def _objects(self, found: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
        kept = found["scores"] >= self.threshold
        boxes, labels, scores = (found[key][kept].tolist() for key in ("boxes", "labels", "scores"))
        return [
            {**map_class_to_label([[box]], self.mapping, [[label]])[0], "score": score}
            for box, label, score in zip(boxes, labels, scores, strict=True)
        ]
