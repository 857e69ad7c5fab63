"""The built-in handler for tensors."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")

MODEL = """
    import torch

    class Double(torch.nn.Module):
        def forward(self, values):
            return values * 2
"""


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def test_each_row_gets_its_tensor(serve: Callable[..., Any], model: Callable[..., str]) -> None:
    served = serve("densenet_handler", modelFile=model(MODEL))

    answers = served.answers(saved(torch.tensor([1.0, 2.0])), saved(torch.tensor([3.0, 4.0])))

    tensors = [torch.load(io.BytesIO(body)) for _, body in answers]
    assert [tensor.tolist() for tensor in tensors] == [[[2.0, 4.0]], [[6.0, 8.0]]]


class Code:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("unpickled",)


@pytest.mark.parametrize("body", [b"", b"text", saved([1, 2]), saved(Code()), pickle.dumps(Code())])
def test_what_is_no_tensor_is_refused_and_never_run(
    serve: Callable[..., Any], model: Callable[..., str], body: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    served = serve("densenet_handler", modelFile=model(MODEL))

    answers = served.answers(body, saved(torch.ones(1)))

    assert [status for status, _ in answers] == [400, 200]
    assert "tensor" in answers[0][1]["message"]
    assert "unpickled" not in capfd.readouterr().out


def test_a_tensor_of_another_shape_can_be_tried_again(serve: Callable[..., Any], model: Callable[..., str]) -> None:
    served = serve("densenet_handler", modelFile=model(MODEL))

    answers = served.answers(saved(torch.ones(1)), saved(torch.ones(2)))

    assert [status for status, _ in answers] == [200, 503]
    assert answers[1][1]["message"] == "The shape [2] is not that of the batch, [1]."
