"""A server for `kserve_client.py`, which runs in kserve's own environment: kserve wants an older psutil.

python -m tests.moves_in.kserve_server CLIENTS_PYTHON
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e.running_server import RunningServer, free_ports, model_folder

#: What the envelope of KServe's v1 gives a handler, and what its v2 does.
DOUBLE = """
def handle(data, context):
    if data is None:
        return None
    return [[number * 2 for number in row] if isinstance(row, list) else row["x"] * 2 for row in data]
"""
CONFIG = "inputs: [{name: x, datatype: FP32, shape: [-1]}]\noutputs: [{name: y, datatype: FP32, shape: [-1]}]\n"


def main() -> None:
    """Serve the same handler for both protocols, and run the client."""
    directory = Path(tempfile.mkdtemp())
    plain = model_folder(directory, "double", DOUBLE, CONFIG)
    (port,) = free_ports(1)
    properties = {"grpc_inference_port": port}
    with (
        RunningServer({"double": plain}, properties) as v2,
        RunningServer({"double": plain}, {"service_envelope": "kserve"}) as v1,
    ):
        for server in (v1, v2):
            server.wait_ready()
        client = Path(__file__).with_name("kserve_client.py")
        addresses = [v1.inference, v2.inference, f"127.0.0.1:{port}"]
        subprocess.run([sys.argv[1], str(client), *addresses], check=True, timeout=120)


if __name__ == "__main__":
    main()
