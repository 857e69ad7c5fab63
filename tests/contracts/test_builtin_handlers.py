"""Models without a line of handler code: packed with torch-model-archiver and the name of a built-in handler."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.e2e.running_server import ROOT, RunningServer

torch = pytest.importorskip("torch")
image_module = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.torch

CONFIG = "batchSize: 4\nmaxBatchDelay: 200\ndeviceType: cpu\n"

CHANNELS = """
import torch


class Channels(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, images):
        return images.mean(dim=(2, 3)) * self.scale
"""

BAG = """
import torch


class Bag(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(3, 2, mode="sum")

    def forward(self, text, offsets):
        return self.embedding(text, offsets)
"""


def archive(store: Path, source: Path, name: str, handler: str, **files: str) -> None:
    """Pack ``files`` of the folder ``source``: flags of torch-model-archiver to file names."""
    (source / "model-config.yaml").write_text(CONFIG)
    flags = [text for flag, file in files.items() for text in (f"--{flag.replace('_', '-')}", file)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'frontend'}{os.pathsep}{ROOT / 'backend'}"}
    subprocess.run(
        [
            *(sys.executable, "-m", "torchserve_py.archives.archiver.torch_model_archiver"),
            *("--model-name", name, "--version", "1.0", "--handler", handler, "--export-path", str(store)),
            *("--config-file", "model-config.yaml", *flags),
        ],
        cwd=source,
        env=environment,
        check=True,
        timeout=180,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    source = tmp_path_factory.mktemp("source")
    running = RunningServer(properties={"drain_timeout": 1})
    with running:
        store = running.model_store
        (source / "channels.py").write_text(CHANNELS)
        (source / "bag.py").write_text(BAG)
        torch.save({"scale": torch.tensor(10.0)}, source / "channels.pth")
        torch.save({"embedding.weight": torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])}, source / "bag.pt")
        torch.save({"<unk>": 0, "good": 1, "bad": 2}, source / "source_vocab.pt")
        torch.jit.script(torch.nn.Flatten(0)).save(str(source / "flatten.pt"))

        (source / "index_to_name.json").write_text(json.dumps({"0": "red", "1": "green", "2": "blue"}))
        archive(
            store, source, "colors", "image_classifier",
            model_file="channels.py", serialized_file="channels.pth", extra_files="index_to_name.json",
        )  # fmt: skip
        (source / "index_to_name.json").write_text(json.dumps({"0": "positive", "1": "negative"}))
        archive(
            store, source, "opinions", "text_classifier",
            model_file="bag.py", serialized_file="bag.pt", extra_files="index_to_name.json,source_vocab.pt",
        )  # fmt: skip
        archive(store, source, "numbers", "base_handler", serialized_file="flatten.pt")
        with ThreadPoolExecutor(3) as threads:
            names = ["colors", "opinions", "numbers"]
            for response in threads.map(lambda name: running.register(f"{name}.mar", synchronous="true"), names):
                assert response.status_code == 200, response.text
        yield running


def picture(color: str) -> bytes:
    file = io.BytesIO()
    image_module.new("RGB", (64, 48), color).save(file, "JPEG")
    return file.getvalue()


def post(server: RunningServer, path: str, **more: Any) -> requests.Response:
    return requests.post(f"{server.inference}/{path}", timeout=180, **more)


def test_an_image_is_classified(server: RunningServer) -> None:
    response = post(server, "predictions/colors", data=picture("blue"))

    assert response.status_code == 200, response.text
    answer = response.json()
    assert list(answer)[0] == "blue"  # noqa: RUF015 - the first is the most probable
    assert sum(answer.values()) == pytest.approx(1)


def test_an_image_in_a_form_is_classified(server: RunningServer) -> None:
    response = post(server, "predictions/colors", files={"data": ("red.jpg", picture("red"))})

    assert next(iter(response.json())) == "red"


def test_in_a_batch_only_who_sent_no_image_gets_an_error(server: RunningServer) -> None:
    bodies = [picture("red"), b"no image", picture("lime"), picture("blue")]
    with ThreadPoolExecutor(4) as threads:
        responses = list(threads.map(lambda body: post(server, "predictions/colors", data=body), bodies))

    assert [response.status_code for response in responses] == [200, 400, 200, 200]
    assert "cannot be read as an image" in responses[1].json()["message"]
    assert [next(iter(response.json())) for response in responses if response.ok] == ["red", "green", "blue"]


def test_an_image_is_explained(server: RunningServer) -> None:
    pytest.importorskip("captum")

    response = post(server, "explanations/colors", data=picture("red"))

    assert response.status_code == 200, response.text
    assert torch.tensor(response.json()).shape == (3, 224, 224)


def test_a_text_is_classified(server: RunningServer) -> None:
    texts = ["It's <b>GOOD</b>!", "bad, bad"]

    answers = [post(server, "predictions/opinions", data=text).json() for text in texts]

    assert [max(answer, key=answer.get) for answer in answers] == ["positive", "negative"]
    assert post(server, "predictions/opinions", json={"no": "text"}).status_code == 400


def test_numbers_go_straight_to_a_torchscript_model(server: RunningServer) -> None:
    response = post(server, "predictions/numbers", json=1.5)

    assert (response.status_code, response.json()) == (200, 1.5)
