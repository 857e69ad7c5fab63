"""``python -m ts.llm_launcher``: serve a large language model with vLLM by one command, as TorchServe's module does.

It writes a model folder for `ts.torch_handler.vllm_handler` into the model store, starts the server, and on Ctrl-C or
SIGTERM stops it and removes the folder. OpenAI's API is then at ``/v1``, and at ``/predictions/{model_name}/1.0/v1``.
Responses and conversations are kept in the worker's memory.
"""

import argparse
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ts.launcher import COMMAND, stop

_VERSION = "1.0"
_HANDLER = "vllm_handler"
_MANIFEST = "MAR-INF/MANIFEST.json"
_CONFIG = "model-config.yaml"
_RESPONSE_TIMEOUT = 1200
#: How long a response or a conversation is kept that is not continued (milliseconds), and how many are.
_MAX_IDLE = 3_600_000
_MOST_KEPT = 50_000


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; flags and defaults are TorchServe's."""
    parser = argparse.ArgumentParser(
        prog="python -m ts.llm_launcher", description="Serve a large language model with vLLM."
    )
    parser.add_argument("--model_name", default="model", help="the name to serve the model under (model)")
    parser.add_argument("--model_store", default="model_store", help="made if it is not there (model_store)")
    parser.add_argument(
        "--model_id",
        default="meta-llama/Meta-Llama-3.1-8B-Instruct",
        help="what vLLM loads: a name on the Hugging Face hub, or a folder",
    )
    parser.add_argument("--disable_token_auth", action="store_true", help="serve requests without a token")
    parser.add_argument("--vllm_engine.max_num_seqs", type=int, default=256, help="requests that run at once (256)")
    parser.add_argument("--vllm_engine.max_model_len", type=int, help="length of the context (the model's own)")
    parser.add_argument("--vllm_engine.download_dir", help="where vLLM keeps what it downloads")
    parser.add_argument("--startup_timeout", type=int, default=1200, help="seconds that loading may take (1200)")
    parser.add_argument("--engine", default="vllm", help="vllm")
    parser.add_argument("--dtype", default="bfloat16", help="accepted, of use for TensorRT-LLM only")
    for flag in ("max_batch_size", "kv_cache_free_gpu_memory_fraction"):
        parser.add_argument(f"--trt_llm_engine.{flag}", help="accepted, without effect")
    return parser


def model_config(arguments: argparse.Namespace, gpus: int) -> dict[str, Any]:
    """Return the model-config.yaml for these arguments and that many GPUs."""
    options = vars(arguments)
    download_dir = options["vllm_engine.download_dir"]
    engine = {
        "max_num_seqs": options["vllm_engine.max_num_seqs"],
        "max_model_len": options["vllm_engine.max_model_len"],
        "download_dir": download_dir and str(Path(download_dir).resolve()),
        "tensor_parallel_size": max(gpus, 1),
    }
    folder = Path(arguments.model_id)
    config = {
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 1,
        "maxBatchDelay": 100,
        "responseTimeout": _RESPONSE_TIMEOUT,
        "startupTimeout": arguments.startup_timeout,
        "deviceType": "gpu" if gpus else "cpu",
        "asyncCommunication": True,
        "sequenceBatching": True,
        "sequenceMaxIdleMSec": _MAX_IDLE,
        "maxNumSequence": _MOST_KEPT,
        "handler": {
            "model_path": str(folder.resolve()) if folder.is_dir() else arguments.model_id,
            "vllm_engine_config": {
                "served_model_name": arguments.model_id,
                **{key: value for key, value in engine.items() if value is not None},
            },
        },
    }
    if gpus > 1:
        config |= {"parallelType": "custom", "parallelLevel": gpus}
    return config


@contextmanager
def model_folder(arguments: argparse.Namespace, gpus: int) -> Iterator[Path]:
    """Write the model's folder into the model store; remove it at the end. Raises OSError: it exists, or it fails."""
    folder = Path(arguments.model_store) / arguments.model_name
    manifest = {
        "runtime": "python",
        "archiverVersion": _VERSION,
        "model": {
            "modelName": arguments.model_name,
            "modelVersion": _VERSION,
            "handler": _HANDLER,
            "configFile": _CONFIG,
        },
    }
    if _is_left_over(folder):
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    try:
        (folder / _MANIFEST).parent.mkdir()
        (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2))
        # JSON is YAML, too.
        (folder / _CONFIG).write_text(json.dumps(model_config(arguments, gpus), indent=2))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_left_over(folder: Path) -> bool:
    """Return whether a killed run of this command left the folder: it holds only the files that are written here."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    return files == {_MANIFEST, _CONFIG} and f'"{_HANDLER}"' in (folder / _MANIFEST).read_text()


def main(command_line: Sequence[str] | None = None) -> int:
    """Serve until interrupted, or until the server ends by itself; return the exit code."""
    arguments = build_parser().parse_args(command_line)
    if arguments.engine != "vllm":
        problem = f"--engine is {arguments.engine}; this server runs vllm, TensorRT-LLM's handler is no part of it."
        print(problem, file=sys.stderr)
        return 2
    if importlib.util.find_spec("vllm") is None:
        print("The package vllm is not installed: pip install vllm", file=sys.stderr)
        return 2
    try:
        with model_folder(arguments, _count_gpus()):
            return _serve(arguments)
    except FileExistsError as error:
        print(f"{error.filename} exists already: remove it, or choose another --model_name.", file=sys.stderr)
    except OSError as error:
        print(f"The model's folder cannot be written: {error}", file=sys.stderr)
    return 1


def _serve(arguments: argparse.Namespace) -> int:
    """Run a server, in place of one that runs; a signal that would end this process ends the server."""
    command = [*COMMAND, "--start", "--foreground", "--no-config-snapshots"]
    command += ["--model-store", arguments.model_store, "--models", arguments.model_name]
    if arguments.disable_token_auth:
        command.append("--disable-token-auth")
    stop()
    print(f"{arguments.model_id}: OpenAI's API at /v1", flush=True)
    # A session of its own: Ctrl-C is to reach the server once, from here.
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    ending = False

    def end(number: int, frame: object) -> None:
        nonlocal ending
        ending = True
        server.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    code = server.wait()
    return 0 if ending else code


def _count_gpus() -> int:
    import torch  # vLLM brings it

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


if __name__ == "__main__":
    sys.exit(main())
