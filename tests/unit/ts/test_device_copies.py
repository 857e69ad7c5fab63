"""Copies to and from a GPU, and its stream. CUDA is a stand-in: calls are noted, tensors stay on the CPU."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from ts.jobs import device_copies  # noqa: E402 - needs torch
from ts.sequence import tensor_bytes  # noqa: E402
from ts.sequence.encoding import StateEncoding  # noqa: E402 - as below
from ts.torch_handler.base_handler import BaseHandler  # noqa: E402

CUDA = torch.device("cuda:0")
CPU = torch.device("cpu")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note what torch is asked to do with CUDA; tensors are on the GPU that ``to`` has brought there."""
    notes: list[Any] = []
    empty, on_gpu = torch.empty, set[int]()

    def stand_in_empty(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        if pin_memory:
            notes.append("pinned")
        return empty(*args, **kwargs)

    def to(tensor: Any, device: Any = None, *, non_blocking: bool = False) -> Any:
        if torch.device(device).type == "cuda":
            notes.append(("to", str(device), non_blocking))
            on_gpu.add(id(tensor))
        return tensor

    class Stream:
        def __init__(self, name: str = "own", device: Any = CUDA) -> None:
            self.name, self.device = str(name), device

        def wait_stream(self, other: Any) -> None:
            notes.append(f"{self.name} waits for {other.name}")

        def synchronize(self) -> None:
            notes.append(f"host waits for {self.name}")

    current = [Stream("callers")]

    @contextlib.contextmanager
    def on(stream: Any) -> Iterator[None]:
        current.append(stream)
        notes.append(f"on {stream.name}")
        try:
            yield
        finally:
            current.pop()

    cuda = SimpleNamespace(Stream=lambda device: Stream("own", device), stream=on)
    cuda.current_stream = lambda device=None: current[-1]
    monkeypatch.setattr(torch, "empty", stand_in_empty)
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: id(tensor) in on_gpu))
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(device_copies, "_own_streams", {})
    return notes


def test_rows_are_gathered_in_pinned_memory_and_leave_it_without_waiting(asked: list[Any]) -> None:
    batch = device_copies.rows_on([numpy.array([1.0, 2.0]), numpy.array([3.0, 4.0])], CUDA)
    assert asked == ["pinned", ("to", "cuda:0", True)]
    assert batch.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert batch.dtype == torch.float64


def test_a_gpus_tensor_reaches_the_host_by_way_of_pinned_memory(asked: list[Any]) -> None:
    result = torch.ones(2, 3, requires_grad=True).detach()
    result.to(CUDA)
    asked.clear()
    result.detach = lambda: result
    copy = device_copies.to_host(result)
    assert asked == ["pinned", "host waits for callers"]
    assert copy.tolist() == [[1.0] * 3] * 2


def test_work_on_the_stream_is_in_order_with_the_work_around_it(asked: list[Any]) -> None:
    with device_copies.computing_on(device_copies.own_stream(CUDA)):
        asked.append("kernel")
    assert asked == ["own waits for callers", "on own", "kernel", "callers waits for own"]


def test_the_kernels_of_a_call_that_raises_are_waited_for(asked: list[Any]) -> None:
    with pytest.raises(ValueError, match="wrong"), device_copies.computing_on(device_copies.own_stream(CUDA)):
        raise ValueError("wrong")
    assert asked == ["own waits for callers", "on own", "callers waits for own"]


def test_a_process_has_one_stream_of_its_own_on_a_device(asked: list[Any]) -> None:
    assert device_copies.own_stream(CUDA) is device_copies.own_stream(torch.device("cuda", 0))
    assert device_copies.own_stream(torch.device("cuda:1")).device == torch.device("cuda:1")


@pytest.mark.parametrize("handler_has_stream", [True, False])
def test_a_state_is_restored_on_the_stream_that_the_handler_computes_on(
    asked: list[Any], handler_has_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if handler_has_stream:
        device_copies.own_stream(CUDA)
    encoding = StateEncoding(gpu_id=0)
    parts_of = tensor_bytes.parts_of
    monkeypatch.setattr(tensor_bytes, "parts_of", lambda tensor: parts_of(tensor)._replace(device="cuda"))
    state = encoding.encode({"hidden": torch.ones(2), "steps": 3})
    asked.clear()

    restored = encoding.decode(state)

    assert (restored["hidden"].tolist(), restored["steps"]) == ([1.0, 1.0], 3)
    copy = ("to", "cuda:0", False)
    around = ["own waits for callers", "on own", copy, "callers waits for own"]
    assert asked == (around if handler_has_stream else [copy])


def test_a_state_in_main_memory_asks_for_no_stream(asked: list[Any]) -> None:
    encoding = StateEncoding(gpu_id=0)
    assert encoding.decode(encoding.encode({"hidden": [1.0, 2.0]})) == {"hidden": [1.0, 2.0]}
    assert asked == []


def test_a_handler_computes_on_its_own_stream(asked: list[Any]) -> None:
    class Names(BaseHandler):
        def _answer(self, data: Any) -> Any:
            return [torch.cuda.current_stream().name for _ in data]

    handler = Names()
    handler.stream = device_copies.own_stream(CUDA)
    context = SimpleNamespace(metrics=SimpleNamespace(add_time=lambda *_: None))
    assert handler.handle(["a", "b"], context) == ["own", "own"]


def test_the_cpu_is_asked_for_nothing_of_the_kind(asked: list[Any]) -> None:
    assert device_copies.rows_on([[1, 2], [3, 4]], CPU).tolist() == [[1, 2], [3, 4]]
    assert device_copies.stack_on([torch.zeros(2)] * 2, CPU).shape == (2, 2)
    assert device_copies.to_host(torch.zeros(2)).tolist() == [0, 0]
    assert device_copies.own_stream(CPU) is None
    with device_copies.computing_on(None):
        pass
    assert asked == []


@pytest.mark.parametrize("device", [None, "cpu", CPU])
def test_a_handler_names_its_device_as_it_likes(device: Any) -> None:
    handler = BaseHandler()
    handler.device, handler.model = device, torch.nn.Identity()
    handler.context = SimpleNamespace(model_yaml_config={})
    assert handler.inference(handler.preprocess([[1.0], [2.0]])).tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    "rows",
    [
        [[1.5, 2.5], [3.5, 4.5]],
        [1.5, 2.5],
        [numpy.float32(1.5), numpy.float32(2.5)],
        [numpy.array([1, 2]), numpy.array([1.5, 2.5])],
        [torch.tensor([1, 2]), torch.tensor([3, 4])],
        numpy.array([[1, 2]]),
    ],
)
def test_any_rows_of_numbers_become_a_batch(rows: Any) -> None:
    batch = device_copies.rows_on(rows, CPU)
    assert batch.tolist() == numpy.array([numpy.asarray(row) for row in rows]).tolist()
