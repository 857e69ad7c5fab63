"""A server for `mlflow_client.py`, which runs in MLflow's own environment and finds the archiver in this one.

python -m tests.moves_in.mlflow_server CLIENTS_PYTHON
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.running_server import RunningServer


def main() -> None:
    """Serve nothing yet, and run the client."""
    commands = Path(sys.executable).parent
    with RunningServer() as server:
        client = Path(__file__).with_name("mlflow_client.py")
        environment = {**server.environment, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
        command = [sys.argv[1], str(client), str(server.config), str(server.model_store)]
        subprocess.run(command, check=True, env=environment, timeout=300)


if __name__ == "__main__":
    main()
