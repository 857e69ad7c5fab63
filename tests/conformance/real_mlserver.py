"""The real MLServer, which serves a folder next to a server of ours."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from tests.e2e.running_server import DEADLINE, eventually
from tests.ports import free_ports

MLSERVER = Path(sys.executable).with_name("mlserver")


@contextmanager
def real_mlserver(folder: Path, directory: Path) -> Iterator[str]:
    """Serve a folder, and give the address; ``directory`` takes what the server writes.

    It runs models in its own process, as its parallel workers do not start with current uvloop.
    """
    rest, grpc_port, metrics = free_ports(3)
    environment = {
        **os.environ,
        "MLSERVER_PARALLEL_WORKERS": "0",
        "MLSERVER_HOST": "127.0.0.1",
        "MLSERVER_HTTP_PORT": str(rest),
        "MLSERVER_GRPC_PORT": str(grpc_port),
        "MLSERVER_METRICS_PORT": str(metrics),
    }
    output = directory / "mlserver-output"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [str(MLSERVER), "start", str(folder)],
            env=environment,
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{rest}"

    def is_ready() -> bool:
        assert process.poll() is None, output.read_text()
        try:
            ready = requests.get(f"{address}/v2/health/ready", timeout=DEADLINE).status_code == 200
            listed = requests.post(f"{address}/v2/repository/index", json={}, timeout=DEADLINE).json()
            return ready and bool(listed) and all(model["state"] == "READY" for model in listed)
        except requests.ConnectionError:
            return False

    try:
        eventually(is_ready, "MLServer is ready")
        yield address
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
