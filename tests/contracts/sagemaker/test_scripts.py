"""Scripts in the shapes of public ones are served at a multi-model endpoint: loaded, invoked, listed and unloaded."""

import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.contracts.sagemaker.script_shapes import SHAPES, Exchange, Shape, body_of
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import DEADLINE, RunningServer, eventually


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer() as running:
        yield running


def write_torch_model(file: Path) -> None:
    import torch

    module = torch.nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.eye(3) * 2)
    trace: Any = torch.jit.trace
    trace(module, torch.ones(1, 3)).save(str(file))


def write(folder: Path, shape: Shape) -> None:
    for name, text in shape.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if shape.torch_model:
        write_torch_model(folder / "model.pt")


def invoke(url: str, exchange: Exchange) -> requests.Response:
    headers = {"Content-Type": exchange.content_type, "Accept": exchange.accept}
    return requests.post(url, body_of(exchange), headers=headers, timeout=DEADLINE)


def check(answer: requests.Response, exchange: Exchange) -> None:
    assert answer.status_code == exchange.status, answer.text
    assert answer.headers.get("Content-Type") == exchange.answer_type
    if exchange.status != 200:
        assert answer.content.startswith(exchange.answer), answer.text
    elif isinstance(exchange.answer, bytes):
        assert answer.content == exchange.answer
    else:
        assert answer.json() == exchange.answer


@pytest.mark.torch
@pytest.mark.parametrize("name", SHAPES)
def test_a_script_is_served(server: RunningServer, tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    if missing := [each for each in shape.needs if importlib.util.find_spec(each) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    write(tmp_path, shape)
    loaded = requests.post(
        f"{server.management}/models", json={"model_name": name, "url": str(tmp_path)}, timeout=DEADLINE
    )
    assert loaded.status_code == 200, loaded.text
    try:
        for exchange in shape.exchanges:
            check(invoke(f"{server.inference}/models/{name}/invoke", exchange), exchange)
    finally:
        unloaded = requests.delete(f"{server.management}/models/{name}", timeout=DEADLINE)
    assert unloaded.status_code == 200, unloaded.text


def gated(folder: Path, loading: Gate, predicting: Gate) -> dict[str, str]:
    """Write a script that waits at a gate while it loads, and at another one for each request; return what loads it."""
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "inference.py").write_text(
        f"{WAITING}\ndef model_fn(model_dir):\n    wait_for({str(loading.path)!r})\n\n\n"
        f"def transform_fn(model, body, kind, accept):\n    wait_for({str(predicting.path)!r})\n    return body\n"
    )
    return {"model_name": folder.name, "url": str(folder)}


def test_invocations_end_before_their_model_is_unloaded(server: RunningServer, tmp_path: Path) -> None:
    loading, predicting = Gate(tmp_path, "loading"), Gate(tmp_path, "predicting")
    loading.open()
    given = gated(tmp_path / "leaving", loading, predicting)
    assert requests.post(f"{server.management}/models", json=given, timeout=DEADLINE).status_code == 200
    url = f"{server.inference}/models/leaving/invoke"
    with ThreadPoolExecutor() as threads:
        running, waiting = (threads.submit(requests.post, url, b"x", timeout=DEADLINE) for _ in range(2))
        predicting.wait_until_reached()
        eventually(lambda: server.describe("leaving")[0]["jobQueueStatus"]["pendingRequests"] == 1, "one request waits")
        unloading = threads.submit(server.unregister, "leaving")
        described = f"{server.management}/models/leaving"
        eventually(lambda: requests.get(described, timeout=DEADLINE).status_code == 404, "the model is gone")
        assert requests.post(url, b"x", timeout=DEADLINE).status_code == 404
        predicting.open()
        assert [(each.result().status_code, each.result().content) for each in (running, waiting)] == [(200, b"x")] * 2
        assert unloading.result().status_code == 200


def test_a_load_that_an_unload_overtakes_tells_so(server: RunningServer, tmp_path: Path) -> None:
    loading = Gate(tmp_path, "loading")
    given = gated(tmp_path / "fleeting", loading, loading)
    with ThreadPoolExecutor() as threads:
        loaded = threads.submit(requests.post, f"{server.management}/models", json=given, timeout=DEADLINE)
        loading.wait_until_reached()
        assert server.unregister("fleeting").status_code == 200
        assert loaded.result().status_code == 404
        assert "was unregistered while its workers started" in loaded.result().json()["message"]
