"""A server for `kserve_client.py`, which runs in kserve's own environment: kserve wants an older psutil.

python -m tests.moves_in.kserve_server CLIENTS_PYTHON
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e.running_server import RunningServer, model_folder
from tests.ports import free_ports

#: What the envelope of KServe's v1 gives a handler, and what its v2 does.
DOUBLE = """
def handle(data, context):
    if data is None:
        return None
    return [[number * 2 for number in row] if isinstance(row, list) else row["x"] * 2 for row in data]
"""
CONFIG = "inputs: [{name: x, datatype: FP32, shape: [-1]}]\noutputs: [{name: y, datatype: FP32, shape: [-1]}]\n"


def started_by_kserve(model: Path, config: str | None, port: int) -> RunningServer:
    """Return a server in KServe's layout: the folder ``model-store``, and beside it ``config`` if there is one."""
    server = RunningServer(
        {}, {"metrics_address": "http://127.0.0.1:0", "management_address": "http://127.0.0.1:0", "access_log": "false"}
    )
    models = server.directory / "models"
    shutil.copytree(model, models / "model-store" / "double")
    if config is not None:
        (models / "config").mkdir()
        (models / "config" / "config.properties").write_text(config)
    (http,) = free_ports(1)
    server.inference = f"http://127.0.0.1:{http}"
    flags = ["--model_name=double", f"--model_dir={models}", f"--http_port={http}", f"--grpc_port={port}"]
    server.command = [sys.executable, "-m", "torchserve_py.tools.operator_tools.container", *flags]
    return server


def main() -> None:
    """Serve the same handler for both protocols, as KServe starts the image, and run the client."""
    directory = Path(tempfile.mkdtemp())
    plain = model_folder(directory, "double", DOUBLE, CONFIG)
    port, other = free_ports(2)
    torchserves = (
        "access_log=false\ninference_address=http://0.0.0.0:8085\nmanagement_address=http://127.0.0.1:0\nmetrics_address=http://127.0.0.1:0\n"
        "grpc_inference_port=7070\ngrpc_management_port=0\nload_models=all\n"
    )
    with (
        started_by_kserve(plain, torchserves, port) as v2,
        started_by_kserve(plain, None, other) as v1,
    ):
        for server in (v1, v2):
            server.wait_ready()
        client = Path(__file__).with_name("kserve_client.py")
        addresses = [v1.inference, v2.inference, f"127.0.0.1:{port}"]
        subprocess.run([sys.argv[1], str(client), *addresses], check=True, timeout=180)


if __name__ == "__main__":
    main()
