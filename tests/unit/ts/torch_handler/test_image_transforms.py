"""The preparation of images: sizes, and the arithmetic of torchvision on values worked out by hand."""

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from ts.torch_handler.image_transforms import center_crop, imagenet_input, resize, to_tensor  # noqa: E402


@pytest.mark.parametrize(
    ("size", "resized"),
    [
        ((300, 400), (256, 341)),
        ((400, 300), (341, 256)),
        ((100, 100), (256, 256)),
        ((256, 999), (256, 999)),
        ((7, 3), (597, 256)),
    ],
)
def test_the_shorter_side_gets_the_size_and_the_longer_is_rounded_down(
    size: tuple[int, int], resized: tuple[int, int]
) -> None:
    assert resize(Image.new("RGB", size), 256).size == resized


def test_making_an_image_smaller_averages_over_all_of_its_pixels() -> None:
    stripes = Image.new("L", (1024, 1024))
    stripes.putdata([255 * (column % 2) for _ in range(1024) for column in range(1024)])

    # Bilinear without antialiasing would keep some of the stripes and drop others.
    assert resize(stripes, 256).crop((8, 8, 248, 248)).getextrema() in {(127, 127), (128, 128), (127, 128)}


def test_the_crop_is_the_middle() -> None:
    image = Image.new("RGB", (256, 341))
    image.putpixel((16, 58), (255, 0, 0))

    # (341 - 224) / 2 = 58.5 is rounded to the even 58.
    assert center_crop(image, 224).getpixel((0, 0)) == (255, 0, 0)


def test_a_tensor_has_channels_first_and_values_up_to_1() -> None:
    image = Image.new("RGB", (2, 1))
    image.putdata([(255, 0, 51), (0, 102, 255)])

    expected = torch.tensor([[[1.0, 0.0]], [[0.0, 0.4]], [[0.2, 1.0]]])
    assert torch.equal(to_tensor(image), expected)


def test_the_input_of_an_imagenet_model_is_normalized_per_channel() -> None:
    result = imagenet_input(Image.new("RGB", (640, 480), (255, 0, 51)))

    assert result.shape == (3, 224, 224)
    assert result.dtype == torch.float32
    assert result[:, 0, 0].tolist() == pytest.approx(
        [(1 - 0.485) / 0.229, -0.456 / 0.224, (0.2 - 0.406) / 0.225], rel=1e-6
    )
