"""The base of image handlers: from a request's bytes to a batch of tensors."""

import functools
from abc import ABC
from typing import Any

import torch

from ts.handler_utils.timer import timed
from ts.jobs.device_copies import stack_on
from ts.torch_handler.base_handler import BaseHandler, captum_attr, import_captum_ahead
from ts.torch_handler.built_in_rows import BadRowError, check_sent, check_shapes, row_value
from ts.torch_handler.image_transforms import UnreadableImageError, lift_pixel_limit, read_image

#: Steps of the integral that an explanation approximates.
_STEPS = 15


class VisionHandler(BaseHandler, ABC):
    """Turns images into tensors. A subclass says how, as ``image_processing``: a PIL image to a tensor.

    A row holds an image file's bytes, their base64 text, or a list of numbers that is the tensor itself.
    """

    def initialize(self, context: Any) -> None:
        """Load the model; lift Pillow's limit on an image's pixels where the server's configuration says so."""
        super().initialize(context)
        if not context.system_properties.get("limit_max_image_pixels", True):
            lift_pixel_limit()
        import_captum_ahead()

    #: Those of an image in numbers: channels, height and width.
    row_dimensions = 3

    @functools.cached_property
    def ig(self) -> Any:
        """Captum's ``IntegratedGradients`` of the model."""
        return captum_attr().IntegratedGradients(self.model)

    @timed
    def preprocess(self, data: Any) -> Any:
        """Return the images as one tensor. Raises BadRowError: a row holds none. RowsApartError: sizes differ."""
        images = self.read_images(data)
        check_shapes(images)
        return stack_on(images, self.input_device)

    def read_images(self, data: Any) -> list[torch.Tensor]:
        """Return one tensor per row. Raises BadRowError: a row holds no image."""
        images = []
        for index, row in enumerate(data):
            value = row_value(row)
            check_sent(index, value)
            try:
                images.append(self._read_value(value))
            except UnreadableImageError as error:
                raise BadRowError(index, f"The request's body {error}.") from error
        return images

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> list[Any]:
        """Return for every image what each of its values contributes to class ``target``, in the image's shape."""
        attributions = self.ig.attribute(tensor_data, target=target, n_steps=_STEPS)
        return list(attributions.tolist())

    def _read_value(self, value: Any) -> torch.Tensor:
        if isinstance(value, str | bytes | bytearray):
            image: torch.Tensor = self.image_processing(read_image(value))  # type: ignore[attr-defined]
            return image
        try:
            return torch.tensor(value, dtype=torch.float32)
        except (TypeError, ValueError) as error:
            raise UnreadableImageError(f"is neither an image nor a list of numbers: {error}") from error
