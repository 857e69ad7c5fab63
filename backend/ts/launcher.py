"""Start and stop a server from Python, and register models with it: TorchServe's module of the same name.

The server is a process of its own, started with the interpreter that runs this.
"""

import json
import queue
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

#: Where `register_model` finds the management API.
MANAGEMENT_ADDRESS = "http://localhost:8081"

#: The command that starts and stops servers.
COMMAND = (sys.executable, "-m", "torchserve_py.cli")
_STARTED = "Model server started"
#: A registration waits until the model is loaded (seconds).
_REGISTRATION_LIMIT = 1200


@dataclass(frozen=True)
class Response:
    """The server's answer, with the parts of a `requests.Response` that scripts use."""

    status_code: int
    text: str

    def json(self) -> Any:
        """The body, which is JSON. Raises ValueError where it is not."""
        return json.loads(self.text)


def start(
    model_store: str | None = None,
    snapshot_file: str | None = None,
    no_config_snapshots: bool = False,
    plugin_folder: str | None = None,
    disable_token: bool = False,
    models: str | Sequence[str] | None = None,
    enable_model_api: bool = False,
) -> queue.Queue[str]:
    """Stop the server that runs, if one does, start another, and return the queue of the lines that it prints then.

    Args:
        snapshot_file: A snapshot or another config.properties.
        plugin_folder: Accepted, without effect.
        models: What ``--models`` takes; several of them as a list, or in one text with blanks between them.

    Raises:
        RuntimeError: The server did not start; the message is its output.
    """
    stop()
    command = [*COMMAND, "--start"]
    for flag, value in (
        ("--model-store", model_store),
        ("--ts-config", snapshot_file),
        ("--plugins-path", plugin_folder),
    ):
        if value is not None:
            command += [flag, str(value)]
    for flag, wanted in (
        ("--no-config-snapshots", no_config_snapshots),
        ("--disable-token-auth", disable_token),
        ("--enable-model-api", enable_model_api),
    ):
        if wanted:
            command.append(flag)
    if models:
        command += ["--models", *(models.split() if isinstance(models, str) else models)]
    launcher = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert launcher.stdout is not None
    output = []
    for line in launcher.stdout:
        if _STARTED in line:
            break
        output.append(line)
    else:
        launcher.wait()
        raise RuntimeError("The server did not start: " + "".join(output).strip())
    lines = queue.Queue[str]()
    threading.Thread(target=_collect, args=(launcher, launcher.stdout, lines), daemon=True).start()
    return lines


def stop(wait: bool = True) -> None:
    """Stop the server that runs, if one does; with ``wait`` it is gone when this returns."""
    command = [*COMMAND, "--stop"]
    if wait:
        subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    else:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


def register_model(model_name: str, url: str) -> Response:
    """Register a model with one worker, and wait until it is loaded."""
    return register_model_with_params(
        {"model_name": model_name, "url": url, "initial_workers": "1", "synchronous": "true"}
    )


def register_model_with_params(params: Mapping[str, Any]) -> Response:
    """Register a model; the parameters are those of ``POST /models``. Raises OSError: the server cannot be reached."""
    url = f"{MANAGEMENT_ADDRESS}/models?{urllib.parse.urlencode(params)}"
    request = urllib.request.Request(url, method="POST")  # noqa: S310  (the address is ours)
    try:
        with urllib.request.urlopen(request, timeout=_REGISTRATION_LIMIT) as answer:  # noqa: S310
            return Response(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Response(error.code, error.read().decode())


def _collect(launcher: subprocess.Popen[str], output: IO[str], lines: queue.Queue[str]) -> None:
    with output:
        for line in output:
            lines.put(line)
    launcher.wait()
