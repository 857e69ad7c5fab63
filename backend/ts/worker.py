"""The worker process: one copy of one model on one device.

    TS_WORKER_TOKEN=… python -P -m ts.worker --socket ADDRESS        (in the model's folder)

The worker connects to the frontend (`ts.worker_socket` says what an address is), loads the model that the first message
describes, and runs the jobs that follow: `serve` for synchronous models, `ts.event_loop` for asynchronous ones.

A parallel worker consists of several such processes. torchrun starts them and sets each one's rank in RANK; only rank 0
sends answers.
"""

import gc
import importlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ts.batch_claims import BatchClaims
from ts.device_loss import memory_ran_out
from ts.frontend_connection import Connection, FollowerConnection, FrontendGone
from ts.no_new_privileges import gain_no_privileges
from ts.parent_death import die_with_parent
from ts.protocol import messages
from ts.protocol.frames import FrameError
from ts.protocol.log_records import write_records
from ts.protocol.messages import Load, Loaded
from ts.runtimes.errors import LoadError, users_traceback, wire_text
from ts.runtimes.loader import TRACES_VARIABLE, load_service
from ts.runtimes.torchserve_handler import TorchServeHandler

logger = logging.getLogger(__name__)


#: By contract, the module whose ``load(load, connection, runner)`` returns the runtime of asynchronous code. A handler
#: of TorchServe's that is no coroutine runs without an event loop.
CONTRACTS: Final = {
    "torchserve": "ts.runtimes.async_handler",
    "truss": "ts.runtimes.truss.load_truss",
    "mlserver": "ts.runtimes.mlserver.load_mlserver",
}

#: How long the main thread may go on after the frontend has gone: an inference that hangs must not keep the process.
_GRACE_SECONDS: Final = 10.0
_RANK_FROM_ENVIRONMENT = "--rank-from-environment"


def main(arguments: list[str]) -> int:
    """Run a worker; return its exit code."""
    if len(arguments) < 2 or arguments[0] != "--socket" or arguments[2:] not in ([], [_RANK_FROM_ENVIRONMENT]):
        print(f"usage: python -P -m ts.worker --socket ADDRESS [{_RANK_FROM_ENVIRONMENT}]", file=sys.stderr)
        return 2
    address = arguments[1]
    rank = int(os.environ["RANK"]) if arguments[2:] else 0
    # Arm the signal before connecting: if the frontend dies before this call, connecting fails; if it dies later, the
    # kernel kills this process.
    die_with_parent()
    gain_no_privileges()  # the server sets this for the workers it starts, but a user may have started this one by hand
    # Ctrl-C in a terminal signals every process of the group; the frontend handles it and stops its workers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Write every line that the handler prints or logs to the model log immediately.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    write_records(logging.getLogger())
    token = os.environ.pop(messages.TOKEN_VARIABLE, "")
    connection = (Connection if rank == 0 else FollowerConnection)(address, messages.JOBS_CHANNEL, token, rank)
    start_heartbeat(address, token, rank)
    serve_model = load(connection)
    if serve_model is None:
        return 1
    # The loaded model's objects live as long as the process: exclude them from every later garbage collection.
    gc.freeze()
    serve_model()
    return 0


def start_heartbeat(address: str, token: str, rank: int = 0) -> None:
    """Answer the frontend's pings on a connection and in a thread of their own, while the main thread is busy.

    A stopped process, or one whose interpreter is stuck, does not answer; a long inference does. Raises OSError: the
    frontend does not listen at ``address``.
    """
    connection = Connection(address, messages.HEARTBEAT_CHANNEL, token, rank)
    threading.Thread(target=_answer_pings, args=(connection,), name="heartbeat", daemon=True).start()


def _answer_pings(connection: Connection) -> None:
    try:
        while True:
            message = connection.receive(wait=True)
            if message is not None and message[0] == messages.PING:
                connection.send([messages.PONG, message[1]])
    except (FrontendGone, FrameError):
        # The main thread sees the end of its own connection as soon as it looks there; usually it is gone before this.
        time.sleep(_GRACE_SECONDS)
        os._exit(1)


def load(connection: Connection) -> Callable[[], None] | None:
    """Load the model that the first message describes, and report the outcome.

    Returns a function that serves the model until the frontend sends a stop message; None if loading failed. Raises
    ValueError: the first message is not a load message.
    """
    message = connection.receive(wait=True)
    if message is None or message[0] != messages.LOAD:
        raise ValueError(f"expected the message {messages.LOAD!r} first, got {message!r}")
    loading: Load = message[1]
    loading["model_dir"] = loading["model_dir"] or os.getcwd()  # noqa: PTH109 - a text
    try:
        serve_model, declares = load_model(loading, connection)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic of Rust code, as tokenizers have it, is no Exception
        place = users_traceback(error)
        logger.error("Loading the model failed", exc_info=(type(error), error, place))
        status, text = load_failure(error)
        details = "".join(traceback.format_exception(type(error), error, place))
        failed = Loaded(ok=False, status=status, message=wire_text(text), traceback=wire_text(details), declares={})
        connection.send([messages.LOADED, failed])
        return None
    connection.send([messages.LOADED, Loaded(ok=True, status=200, message="", traceback="", declares=dict(declares))])
    return serve_model


def load_model(load: Load, connection: Connection) -> tuple[Callable[[], None], Mapping[str, Any]]:
    """Load a model; return a function that serves it until the frontend sends a stop message, and its declarations.

    Raises LoadError: the contract is unknown, or the handler does not fit it; Exception: the model's code raised it.
    """
    if load["contract"] not in CONTRACTS:
        known = ", ".join(map(repr, CONTRACTS))
        raise LoadError(f"This worker cannot run the contract {load['contract']!r}; it knows {known}.")
    if load["asynchronous"]:
        return load_asynchronous(load, connection)
    kind: type[TorchServeHandler] = TorchServeHandler
    if load["continuous"]:
        from ts.runtimes.continuous import ContinuousHandler

        kind = ContinuousHandler
    service = load_service(load)
    runtime = kind(
        service,
        connection,
        decode_input=load["decode_input_request"],
        max_response_size=load["max_response_size"],
        claims=BatchClaims(os.environ.pop(messages.CLAIMS_VARIABLE, "")),
    )
    if load["warmup"]:
        from ts.runtimes.warm_up import warm_up

        warm_up(service, runtime, load)
    return partial(serve, connection, runtime), runtime.declares


def load_asynchronous(load: Load, connection: Connection) -> tuple[Callable[[], None], Mapping[str, Any]]:
    """Load a model whose code is asynchronous, as `load_model` does; loading and serving use the same event loop."""
    import asyncio

    from ts import event_loop

    module = importlib.import_module(CONTRACTS[load["contract"]])
    runner = asyncio.Runner()
    runtime: event_loop.AsyncRuntime = module.load(load, connection, runner)
    spans = None
    if runtime.spans_jobs and (traces := os.environ.get(TRACES_VARIABLE)):
        from ts.runtimes.handler_spans import Spans

        spans = Spans(traces, load["model_name"])
    return partial(event_loop.run, connection, runtime, runner, spans), runtime.declares


def load_failure(error: BaseException) -> tuple[int, str]:
    """Return the status and message with which the worker reports a failed load."""
    if memory_ran_out(error):
        return 507, "System out of memory"
    if isinstance(error, LoadError):
        return 500, str(error)
    shown = f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError) and str(error) == f"No module named {error.name!r}":
        return 500, f"{shown}; it is neither beside the model nor installed for {sys.executable}"
    return 500, shown


def serve(connection: Connection, runtime: TorchServeHandler) -> None:
    """Run the model until the frontend sends a stop message.

    Every message that has arrived is handled before the next step, so jobs join and cancelled jobs leave between two
    steps. All jobs that arrived before the stop message are answered before this function returns; the frontend limits
    how long that may take. Raises ValueError: a message of an unknown kind arrived.
    """
    stopping = False
    while (is_busy := runtime.is_busy) or not stopping:
        message = connection.receive(wait=not is_busy)
        if message is None:
            connection.run_step(runtime.step)
        elif message[0] == messages.INFER:
            runtime.admit(*message[1:])
        elif message[0] == messages.END_SEQUENCE:
            runtime.end_sequences(message[1])
        elif message[0] == messages.STOP:
            stopping = True
        else:
            raise ValueError(f"the frontend sent a message of unknown kind {message[0]!r}")
    runtime.close()
    connection.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
