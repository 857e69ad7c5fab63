"""Where a server listens, and which models it starts with."""

import asyncio
import os
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import aiohttp
import requests
from tests.e2e.running_server import DEADLINE, HANDLERS, ROOT, RunningServer, eventually, model_folder
from tests.ports import free_ports

from model_archiver import ModelArchiver, ModelArchiverConfig

ECHO = """
def handle(data, context):
    return None if data is None else [row["body"] for row in data]
"""


async def test_unix_sockets(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "echo", ECHO)
    names = ("inference", "management", "metrics")
    properties = {f"{name}_address": f"unix:{tmp_path / name}" for name in names}
    with RunningServer({"echo": folder}, {"drain_timeout": 1, **properties}) as server:
        assert all((tmp_path / name).is_socket() for name in names)

        async def post(name: str, path: str, data: str = "") -> str:
            connector = aiohttp.UnixConnector(str(tmp_path / name))
            async with aiohttp.ClientSession(connector=connector) as session, session.post(path, data=data) as response:
                return await response.text()

        assert await post("inference", "http://server/predictions/echo", data="over a file") == "over a file"
        assert "initial workers" in await post("management", f"http://server/models?url={folder}&model_name=second")
        assert await post("inference", "http://server/predictions/second/1.0", data="x") == "x"
        assert await asyncio.to_thread(server.terminate) == 0
    assert not any((tmp_path / name).exists() for name in names)


def test_one_address_for_everything(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "echo", ECHO)
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    properties = {f"{name}_address": address for name in ("inference", "management", "metrics")}
    with RunningServer({"echo": folder}, {"drain_timeout": 1, **properties}) as server:
        eventually(lambda: requests.get(f"{address}/ready", timeout=180).status_code == 200, "the server is ready")
        answers = {
            path: requests.get(f"{address}{path}", timeout=180)
            for path in ("/ping", "/ready", "/predictions/echo", "/models", "/models/echo/1.0", "/metrics")
        }
        assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(answers, 200)
        assert answers["/models/echo/1.0"].json()[0]["modelName"] == "echo"
        assert server.workers()


def pack(model_store: Path, name: str, archive_format: Literal["default", "tgz"]) -> None:
    config = ModelArchiverConfig(
        model_name=name,
        version="1.0",
        handler=str(HANDLERS / "echo" / "echo_handler.py"),
        export_path=str(model_store),
        archive_format=archive_format,
    )
    ModelArchiver.generate_model_archive(config)


def test_all_models_of_the_store(tmp_path: Path) -> None:
    with RunningServer({}, {"drain_timeout": 1, "load_models": "all"}) as server:
        server.terminate()
        model_folder(server.model_store, "folder", ECHO)
        model_folder(server.model_store, ".hidden", ECHO)
        pack(server.model_store, "packed", "default")
        pack(server.model_store, "tarball", "tgz")
        (server.model_store / "broken.mar").write_bytes(b"no archive")
        server.output.unlink()
        server.start()
        assert [server.predict(name, "x").text for name in ("folder", "packed", "tarball")] == ["x"] * 3
        ready = requests.get(f"{server.inference}/ready", timeout=180)
        assert (ready.status_code, len(ready.json()["reasons"])) == (503, 1)  # the broken one
        listed = requests.get(f"{server.management}/models", timeout=180).json()["models"]
        assert [model["modelName"] for model in listed] == ["folder", "packed", "tarball"]
        assert "broken.mar is not loaded" in server.log()


def test_grpc_packages_that_do_not_fit_are_named_before_anything_is_served(tmp_path: Path) -> None:
    package = tmp_path / "packages" / "google" / "rpc"
    package.mkdir(parents=True)
    refusal = "Detected incompatible Protobuf Gencode/Runtime versions: gencode 7.35.1 runtime 6.33.6."
    (package / "status_pb2.py").write_text(f"raise RuntimeError({refusal!r})\n")
    path = os.pathsep.join([str(tmp_path / "packages"), str(ROOT / "frontend"), str(ROOT / "backend")])
    server = RunningServer({}, environment={"PYTHONPATH": path})
    try:
        server.launch()
        assert server.process is not None
        assert server.process.wait(DEADLINE) == 1
        (told,) = (line for line in server.log().splitlines() if "[ERROR]" in line)
        assert f"google.rpc.status_pb2 cannot be imported: RuntimeError: {refusal}" in told
        assert f"protobuf {version('protobuf')}, googleapis-common-protos {version('googleapis-common-protos')}" in told
        assert "listening at" not in server.log()
        assert "Traceback" not in server.log()
    finally:
        server.__exit__()
