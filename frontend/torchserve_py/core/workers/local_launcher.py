"""The launcher of this machine: the server starts processes."""

from __future__ import annotations

from pathlib import Path

from torchserve_py.core.workers.batch_tokens import BatchTokens
from torchserve_py.core.workers.launch_command import Launch
from torchserve_py.core.workers.process import WorkerProcess, start_child
from torchserve_py.core.workers.worker_launcher import Launcher
from ts.protocol.messages import CLAIMS_VARIABLE


class LocalLauncher(Launcher):
    """Starts processes."""

    async def start(
        self, launch: Launch, socket: Path, token: str, worker_id: str, label: str, tokens: BatchTokens | None
    ) -> WorkerProcess:
        """Start a process, as `Launcher.start` says."""
        claims = () if tokens is None else tokens.worker_ends
        environment = launch.worker_environment(token)
        if claims:
            environment[CLAIMS_VARIABLE] = ",".join(map(str, claims))
        process = await start_child(launch.command(socket), launch.working_dir, environment, claims)
        return WorkerProcess(process, label, worker_id)
