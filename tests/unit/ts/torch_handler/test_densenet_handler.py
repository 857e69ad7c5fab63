"""The built-in handler for tensors."""

import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

MODEL = """
    import torch

    class Double(torch.nn.Module):
        def forward(self, values):
            return values * 2
"""


TRUSTING = "handler: {torch_load_requests: true}"


def numpy_file(values: list[float]) -> bytes:
    file = io.BytesIO()
    numpy.save(file, numpy.array(values, dtype=numpy.float32))
    return file.getvalue()


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def test_each_row_gets_its_tensor(serve: Callable[..., Any], model: Callable[..., str]) -> None:
    served = serve("densenet_handler", modelFile=model(MODEL), config=TRUSTING)

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
    served = serve("densenet_handler", modelFile=model(MODEL), config=TRUSTING)

    answers = served.answers(body, saved(torch.ones(1)))

    assert [status for status, _ in answers] == [400, 200]
    assert "tensor" in answers[0][1]
    assert "unpickled" not in capfd.readouterr().out


def test_a_tensor_of_another_shape_is_a_batch_of_its_own(serve: Callable[..., Any], model: Callable[..., str]) -> None:
    served = serve("densenet_handler", modelFile=model(MODEL), config=TRUSTING)

    answers = served.answers(saved(torch.ones(1)), saved(torch.ones(2)), numpy_file([5.0]))

    assert [status for status, _ in answers] == [200, 200, 200]
    assert [torch.load(io.BytesIO(body)).tolist() for _, body in answers[:2]] == [[[2.0]], [[2.0, 2.0]]]
    assert numpy.load(io.BytesIO(answers[2][1]), allow_pickle=False).tolist() == [[10.0]]


def test_pickles_are_refused_unless_the_model_trusts_its_clients(
    serve: Callable[..., Any], model: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any, **more: Any) -> None:
        raise AssertionError("a request was unpickled")

    served = serve("densenet_handler", modelFile=model(MODEL))
    monkeypatch.setattr(torch, "load", never)

    answers = served.answers(saved(torch.ones(2)), numpy_file([3.0, 4.0]))

    assert [status for status, _ in answers] == [400, 200]
    assert "'handler: {torch_load_requests: true}'" in answers[0][1]
    assert numpy.load(io.BytesIO(answers[1][1]), allow_pickle=False).tolist() == [[6.0, 8.0]]


@pytest.mark.parametrize("rest", [b"", b"\x01\x00\xff\xff", b"\x01\x00v\x00{'descr': '|O', 'fortran_order': False}"])
def test_a_broken_numpy_file_is_refused(serve: Callable[..., Any], model: Callable[..., str], rest: bytes) -> None:
    served = serve("densenet_handler", modelFile=model(MODEL))

    ((status, told),) = served.answers(b"\x93NUMPY" + rest)

    assert status == 400
    assert "numpy.save" in told
