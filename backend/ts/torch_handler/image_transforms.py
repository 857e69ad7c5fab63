"""The image preparation that models trained with torchvision expect, without torchvision.

Same arithmetic as torchvision's ``Resize``, ``CenterCrop``, ``ToTensor`` and ``Normalize`` on PIL images: the results
are equal bit for bit. Images of any mode (grey, palette, with transparency) are taken as RGB.
"""

import base64
import io
import struct
from typing import Any

import torch

from ts.utils.optional_packages import missing_package

try:
    from PIL import Image
except ModuleNotFoundError as error:
    raise missing_package(error, "Image handlers", "vision") from error

_RESIZED = 256
_CROPPED = 224
#: Mean and standard deviation of ImageNet's colour channels.
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)


class UnreadableImageError(ValueError):
    """The client's value is not an image."""


def read_image(value: Any) -> Image.Image:
    """Return the image in a file's bytes or base64 text. Raises UnreadableImageError: it is none, or too large."""
    try:
        content = base64.b64decode(value) if isinstance(value, str) else bytes(value)
        image = Image.open(io.BytesIO(content))
        image.load()
    except (OSError, EOFError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        # Pillow names the buffer's address where a file name would be.
        reason = "unknown format" if "cannot identify" in str(error) else str(error)
        raise UnreadableImageError(f"cannot be read as an image: {reason}") from error
    return image


def lift_pixel_limit() -> None:
    """Let images have any number of pixels, in this whole process."""
    Image.MAX_IMAGE_PIXELS = None


def imagenet_input(image: Image.Image) -> torch.Tensor:
    """Return the middle of an image as float32 of shape [3, 224, 224], normalized as ImageNet models are trained."""
    return normalize(to_tensor(center_crop(resize(image.convert("RGB"), _RESIZED), _CROPPED)), _MEAN, _STD)


def resize(image: Image.Image, size: int) -> Image.Image:
    """Return ``image`` with its shorter side ``size`` pixels long; bilinear, with antialiasing.

    Raises UnreadableImageError: it is so long and narrow that the result would have more pixels than Pillow allows.
    """
    width, height = image.size
    longer = size * max(width, height) // min(width, height)
    if Image.MAX_IMAGE_PIXELS is not None and size * longer > Image.MAX_IMAGE_PIXELS:
        raise UnreadableImageError(f"is too narrow for its length: {width} x {height} pixels")
    new_size = (size, longer) if width <= height else (longer, size)
    return image if new_size == image.size else image.resize(new_size, Image.Resampling.BILINEAR)


def center_crop(image: Image.Image, size: int) -> Image.Image:
    """Return the square of ``size`` pixels in the middle of ``image``, which is at least as large."""
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Return an image as float32 of shape [3, height, width] from 0 to 1."""
    pixels = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8)
    return pixels.view(image.height, image.width, 3).permute(2, 0, 1).contiguous().to(torch.float32).div(255)


def normalize(tensor: torch.Tensor, mean: tuple[float, float, float], std: tuple[float, float, float]) -> torch.Tensor:
    """Return ``tensor`` less ``mean``, divided by ``std``, for each of its three channels."""
    return (tensor - torch.tensor(mean).view(3, 1, 1)).div_(torch.tensor(std).view(3, 1, 1))
