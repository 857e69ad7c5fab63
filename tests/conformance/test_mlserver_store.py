"""A folder of models with a `settings.json` above them, served by MLServer and, as the model store, by this server."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.conformance.real_mlserver import real_mlserver
from tests.e2e.running_server import COMMAND, DEADLINE, RunningServer

MODEL = """
import logging

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.logging import logger
from mlserver.types import InferenceResponse
import numpy as np


class Counts(MLModel):
    async def load(self):
        self.calls = 0
        return True

    async def predict(self, payload):
        self.calls += 1
        logger.debug("call %d", self.calls)
        array = np.array([self.calls, logger.isEnabledFor(logging.DEBUG)])
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("calls", array)])
"""
SETTINGS = {"server_name": "here", "parallel_workers": 0, "cache_enabled": True, "debug": False, "cors_settings": {}}
REQUEST = {"id": "1", "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("store")
    (store / "settings.json").write_text(json.dumps(SETTINGS))
    for name, cached in (("cached", True), ("fresh", False)):
        folder = store / "models" / name
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(MODEL)
        values = {"name": name, "implementation": "model.Counts", "cache_enabled": cached}
        (folder / "model-settings.json").write_text(json.dumps(values))
    return store


def served_store(store: Path) -> RunningServer:
    running = RunningServer({})
    shutil.copytree(store, running.model_store, dirs_exist_ok=True)
    running.command += ["--models", "all"]
    return running


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[RunningServer]:
    with served_store(store) as running:
        running.wait_ready()
        yield running


def answers(address: str, model: str) -> list[Any]:
    url = f"{address}/v2/models/{model}/infer"
    sent = [requests.post(url, json=REQUEST, timeout=DEADLINE) for _ in range(2)]
    return [(each.headers["ce-source"], each.headers["ce-inferenceservicename"], each.json()) for each in sent]


def test_the_settings_above_the_models_are_in_force(
    store: Path, server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with real_mlserver(store, tmp_path_factory.mktemp("mlserver")) as mlserver:
        fresh = answers(mlserver, "fresh")
        assert [each[2]["outputs"][0]["data"] for each in fresh] == [[1, 0], [2, 0]]
        assert answers(server.inference, "fresh") == fresh
        assert fresh[0][:2] == ("io.seldon.serving.deployment.here", "here")
        # MLServer's own cache hardly ever finds a response, because its keys hold the headers.
        assert [each[2]["outputs"][0]["data"] for each in answers(server.inference, "cached")] == [[1, 0], [1, 0]]


def test_what_has_no_effect_is_said_once(server: RunningServer) -> None:
    text = "settings.json of the model store: cors_settings has no effect"
    assert server.log().count(text) == 1


def test_the_check_says_so_too(store: Path) -> None:
    server = served_store(store).started_by(*COMMAND)  # not started: its addresses are free
    command = [each for each in server.command if each not in ("--foreground", "--start")]

    def check() -> tuple[int, str]:
        ended = subprocess.run(
            [*command, "--check-config"],
            env=server.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        return ended.returncode, ended.stdout

    status, told = check()
    assert status == 0, told
    assert told.count("settings.json of the model store: cors_settings has no effect") == 1
    (server.model_store / "settings.json").write_text(json.dumps({**SETTINGS, "kafka_enabled": True}))
    status, told = check()
    assert status != 0
    assert "settings.json of the model store: kafka_enabled is true, but Kafka is not supported" in told
