"""The built-in image handlers: what they answer, and what they say of what is no image."""

import base64
import json
import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")
base_handler = pytest.importorskip("ts.torch_handler.base_handler")

#: A class for each colour channel; its logit is the channel's mean.
CHANNELS = """
    import torch

    class Channels(torch.nn.Module):
        def forward(self, images):
            return images.mean(dim=(2, 3))
"""

#: The classes of each pixel are the colour channels.
SEGMENTS = """
    import torch

    class Segments(torch.nn.Module):
        def forward(self, images):
            return {"out": images}
"""

#: Finds the whole image, surely as class 1 and hardly as class 2.
BOXES = """
    import torch

    class Boxes(torch.nn.Module):
        def forward(self, images):
            return [
                {
                    "boxes": torch.tensor([[0.0, 0.0, image.shape[2], image.shape[1]]] * 2),
                    "labels": torch.tensor([1, 2]),
                    "scores": torch.tensor([0.75, 0.25]),
                }
                for image in images
            ]
"""

RED = [(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225]


def softmax(values: list[float]) -> list[float]:
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def labels(folder: Path, content: Any) -> None:
    (folder / "index_to_name.json").write_text(json.dumps(content))


def test_a_classifier_names_the_most_probable_classes_with_their_probabilities(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes], tmp_path: Path
) -> None:
    labels(tmp_path, {"0": ["n01", "red"], "1": ["n02", "green"], "2": ["n03", "blue"]})
    served = serve("image_classifier", modelFile=model(CHANNELS))

    [(status, answer)] = served.answers(picture())

    assert status == 200
    assert list(answer) == ["red", "blue", "green"]
    red, green, blue = softmax(RED)
    assert answer == pytest.approx({"red": red, "green": green, "blue": blue}, rel=1e-5)


def test_without_names_classes_are_told_by_their_index(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes]
) -> None:
    served = serve("image_classifier", modelFile=model(CHANNELS))
    served.handler.set_max_result_classes(1)

    assert served.handler.get_max_result_classes() == 1
    assert [list(answer) for _, answer in served.answers(picture("red"), picture("blue"))] == [["0"], ["2"]]


def test_images_come_as_bytes_as_base64_as_form_fields_and_as_numbers(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes]
) -> None:
    served = serve("image_classifier", modelFile=model(CHANNELS))
    image = picture("blue")

    [(_, expected)] = served.answers(image)
    [(_, in_form)] = served.answers({"data": image})
    encoded = served.handler.preprocess([{"body": base64.b64encode(image).decode()}])
    numbers = served.handler.preprocess([{"data": encoded[0].tolist()}])
    unwrapped = served.handler.preprocess([image])

    assert in_form == expected
    assert encoded.shape == (1, 3, 224, 224)
    assert torch.equal(numbers, encoded)
    assert torch.equal(unwrapped, encoded)


@pytest.mark.parametrize("handler", ["image_classifier", "base_handler"])
def test_a_body_that_was_sent_as_a_form_is_told_how_to_be_sent(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes], handler: str
) -> None:
    served = serve(handler, modelFile=model(CHANNELS))

    answers = served.answers({"[1, 2]": ""}, {"dta": picture()})

    assert [status for status, _ in answers] == [400, 400]
    for _, message in answers:
        assert message.startswith("The request's body is missing, or null. Of a form, only the field 'data' is read; ")


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1"])
def test_images_of_any_mode_are_taken_as_rgb(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes], mode: str
) -> None:
    served = serve("image_classifier", modelFile=model(CHANNELS))

    [(status, _)] = served.answers(picture("white", mode=mode))

    assert status == 200


def test_one_unreadable_image_does_not_spoil_the_batch(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes]
) -> None:
    served = serve("image_classifier", modelFile=model(CHANNELS))

    answers = served.answers(b"no image", picture("red"), picture("blue")[:-40], picture("blue"))

    assert [status for status, _ in answers] == [400, 200, 400, 200]
    assert answers[0][1] == "The request's body cannot be read as an image: unknown format."
    assert "cannot be read as an image" in answers[2][1]
    assert [max(answer, key=answer.get) for _, answer in answers[1::2]] == ["0", "2"]


def test_images_of_another_shape_are_a_batch_of_their_own_and_none_is_lost_for_the_first(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve("image_classifier", modelFile=model(CHANNELS))
    row_value = sys.modules["ts.torch_handler.vision_handler"].row_value
    # The worker decodes JSON before the handler gets it.
    monkeypatch.setattr(
        sys.modules["ts.torch_handler.vision_handler"], "row_value", lambda row: as_json(row_value(row))
    )

    wrong, small = b"[[[1.0, 2.0], [3.0, 4.0]]]", json.dumps(torch.zeros(3, 2, 2).tolist()).encode()
    answers = served.answers(b"[1.0, 2.0]", picture("red"), wrong, picture("blue"), small, b"no image")

    assert [status for status, _ in answers] == [503, 200, 200, 200, 200, 400]
    assert [max(answers[index][1], key=answers[index][1].get) for index in (1, 3)] == ["0", "2"]
    # The model is known to work by now, so what it does not take is the client's fault.
    status, message = served.answers(b"[1.0, 2.0]", picture("red"))[0]
    assert status == 400
    assert message.startswith("The model does not take the values of the shape [2] and the type float32: ")


def as_json(value: Any) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def test_unreadable_images_alone_are_refused(serve: Callable[..., Any], model: Callable[..., str]) -> None:
    served = serve("image_classifier", modelFile=model(CHANNELS))

    assert served.answers(b"") == [(400, "The request's body cannot be read as an image: unknown format.")]
    assert [status for status, _ in served.answers(b"a", b"b")] == [400, 400]


def test_an_image_that_would_grow_without_bounds_is_refused(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes]
) -> None:
    served = serve("image_classifier", modelFile=model(CHANNELS))

    [(status, message)] = served.answers(picture(size=(1, 2000)))

    assert (status, message) == (400, "The request's body is too narrow for its length: 1 x 2000 pixels.")


def test_the_limit_on_pixels_is_lifted_only_where_the_configuration_says_so(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 10_000)
    file = model(CHANNELS)

    [(status, message)] = serve("image_classifier", modelFile=file).answers(picture())
    assert status == 400
    assert "exceeds limit" in message

    unlimited = serve("image_classifier", modelFile=file, changes={"limit_max_image_pixels": False})
    assert [status for status, _ in unlimited.answers(picture())] == [200]


def test_a_segmenter_tells_class_and_probability_of_each_pixel(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes]
) -> None:
    served = serve("image_segmenter", modelFile=model(SEGMENTS))

    [(_, red), (_, blue)] = served.answers(picture("red"), picture("blue"))

    pixels = torch.tensor([red, blue])
    assert pixels.shape == (2, 224, 224, 2)
    assert pixels[..., 0].unique(dim=0).tolist() == [[[0.0] * 224] * 224, [[2.0] * 224] * 224]
    assert pixels[0, ..., 1].flatten().tolist() == pytest.approx([max(softmax(RED))] * 224 * 224, rel=1e-5)


@pytest.mark.parametrize("sizes", [[(30, 20), (30, 20)], [(30, 20), (7, 9)]])
def test_a_detector_tells_what_is_where_for_images_of_any_size(
    serve: Callable[..., Any],
    model: Callable[..., str],
    picture: Callable[..., bytes],
    tmp_path: Path,
    sizes: list[tuple[int, int]],
) -> None:
    labels(tmp_path, {"object_type_names": ["background", "person", "car"]})
    served = serve("object_detector", modelFile=model(BOXES))

    answers = served.answers(*(picture(size=size) for size in sizes))

    assert answers == [
        (200, [{"person": [0.0, 0.0, float(width), float(height)], "score": 0.75}]) for width, height in sizes
    ]
    served.handler.threshold = 0.2
    [(_, found)] = served.answers(picture())
    assert [next(iter(each)) for each in found] == ["person", "car"]


def test_an_image_is_explained_pixel_by_pixel(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes]
) -> None:
    pytest.importorskip("captum")
    served = serve("image_classifier", modelFile=model(CHANNELS))

    [(status, answer)] = served.answers({"data": picture("red"), "target": b"0"}, explain=[0])

    explained = torch.tensor(answer)
    assert status == 200
    assert explained.shape == (3, 224, 224)
    # Integrated gradients add up to the class's output; the other channels have no part in it.
    assert explained.sum().item() == pytest.approx(RED[0], rel=1e-4)
    assert explained[1:].abs().max().item() == 0

    assert served.answers({"data": picture(), "target": b"first"}, explain=[0]) == [
        (400, "target must be the index of a class, got bytearray(b'first')")
    ]
    [(status, message)] = served.answers({"data": picture(), "target": b"99"}, explain=[0])
    assert status == 400
    assert message.startswith("target 99 is not the index of a class of this model")


def test_each_explanation_of_a_batch_is_of_its_own_class(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes]
) -> None:
    pytest.importorskip("captum")
    served = serve("image_classifier", modelFile=model(CHANNELS))

    rows = [{"data": picture("red"), "target": target} for target in (b"0", b"2", b"99")]
    answers = served.answers(*rows, explain=[0, 1, 2])

    assert [status for status, _ in answers] == [200, 200, 400]
    sums = [torch.tensor(answer).sum(dim=(1, 2)).abs().argmax().item() for _, answer in answers[:2]]
    assert sums == [0, 2]


def test_what_explains_is_imported_before_the_first_explanation(
    serve: Callable[..., Any], model: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("captum")
    imports = threading.Event()
    monkeypatch.setattr(base_handler, "_import_captum", imports.set)
    serve("image_classifier", modelFile=model(CHANNELS))
    assert imports.wait(60)


def test_a_batch_may_mix_predictions_and_explanations(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes]
) -> None:
    pytest.importorskip("captum")
    served = serve("image_classifier", modelFile=model(CHANNELS))

    answers = served.answers(picture("red"), picture("red"), b"no image", picture("blue"), explain=[1, 2])

    assert [status for status, _ in answers] == [200, 200, 400, 200]
    assert max(answers[0][1], key=answers[0][1].get) == "0"
    assert torch.tensor(answers[1][1]).shape == (3, 224, 224)
    assert max(answers[3][1], key=answers[3][1].get) == "2"


def test_an_explanation_without_captum_says_what_to_install(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "captum", None)
    served = serve("image_classifier", modelFile=model(CHANNELS))

    assert [status for status, _ in served.answers(picture())] == [200]
    [(status, message)] = served.answers(picture(), explain=[0])
    assert status == 501
    assert message == (
        "Explanations need the package captum, which is not installed: pip install 'torchserve-py[explain]'"
    )


def test_loading_without_pillow_says_what_to_install(
    serve: Callable[..., Any], model: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("ts.torch_handler.image", "ts.torch_handler.vision"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "PIL", None)

    with pytest.raises(ModuleNotFoundError, match=r"Image handlers need the package PIL.*torchserve-py\[vision\]"):
        serve("image_classifier", modelFile=model(CHANNELS))


def test_a_subclass_prepares_images_in_its_own_way(
    serve: Callable[..., Any], model: Callable[..., str], picture: Callable[..., bytes]
) -> None:
    handler = model(
        """
        import torch
        from ts.torch_handler.vision_handler import VisionHandler

        class Sizes(VisionHandler):
            def image_processing(self, image):
                return torch.tensor(image.size)
        """
    )
    served = serve(handler, modelFile=model("import torch\nclass Same(torch.nn.Identity): ..."))

    assert served.answers(picture(size=(5, 4))) == [(200, [5, 4])]
