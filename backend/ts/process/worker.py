"""The worker process: one copy of one model on one device.

    TS_WORKER_TOKEN=… python -P -m ts.process.worker --socket ADDRESS        (in the model's folder)

The worker connects to the frontend (`ts.connection.worker_socket` says what an address is), loads the model that the
first message describes, and runs the jobs that follow: `serve` for handlers that are called with batches, and what a
plugin has for models that are run in another way.

A parallel worker consists of several such processes. torchrun starts them and sets each one's rank in RANK; only rank 0
sends answers.
"""

import gc
import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ts.connection.batch_claims import BatchClaims
from ts.connection.frontend_connection import FollowerConnection, FrontendConnection, FrontendGone
from ts.connection.heartbeat import Heartbeat
from ts.jobs import device_loss
from ts.jobs.errors import LoadError, users_traceback, wire_text
from ts.jobs.processor_share import use_processors
from ts.jobs.search_path import OWN_ROOT, hidden_modules, hint, missing, search_in
from ts.jobs.sequence_steps import StoreReports
from ts.process.no_new_privileges import gain_no_privileges
from ts.process.parent_death import die_with_parent
from ts.protocol import messages
from ts.protocol.log_records import write_records
from ts.protocol.messages import EndedSequence, Load, Loaded
from ts.protocol.misplaced_files import misplaced_in
from ts.runtime.loader import load_service, prepare
from ts.runtime.torchserve_handler import TorchServeHandler

logger = logging.getLogger(__name__)


_RANK_FROM_ENVIRONMENT = "--rank-from-environment"


def main(arguments: list[str]) -> int:
    """Run a worker; return its exit code."""
    if len(arguments) < 2 or arguments[0] != "--socket" or arguments[2:] not in ([], [_RANK_FROM_ENVIRONMENT]):
        print(f"usage: python -P -m ts.process.worker --socket ADDRESS [{_RANK_FROM_ENVIRONMENT}]", file=sys.stderr)
        return 2
    address = arguments[1]
    rank = int(os.environ["RANK"]) if arguments[2:] else 0
    # Arm the signal before connecting: if the frontend dies before this call, connecting fails; if it dies later, the
    # kernel kills this process.
    die_with_parent()
    gain_no_privileges()  # the server sets this for the workers it starts, but a user may have started this one by hand
    # Ctrl-C in a terminal signals every process of the group; the frontend handles it and stops its workers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Write every line that the handler prints or logs to the model log immediately. Half of a surrogate pair, which a
    # client's JSON may hold, is spelled out: to print what was sent must not fail the request.
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    write_records(logging.getLogger())
    find_modules(os.environ.pop(messages.FOLDERS_VARIABLE, ""))
    token = os.environ.pop(messages.TOKEN_VARIABLE, "")
    connection = (FrontendConnection if rank == 0 else FollowerConnection)(address, messages.JOBS_CHANNEL, token, rank)
    serve_model = load(connection, Heartbeat(address, token, rank))
    if serve_model is None:
        return 1
    # The loaded model's objects live as long as the process: exclude them from every later garbage collection.
    gc.freeze()
    serve_model()
    return 0


def find_modules(folders: str) -> None:
    """Look for modules in the model's folders, and let programs that the handler starts do so through PYTHONPATH.

    They do not if that would hide modules of Python's from them. Nor have they the folder of this package, which the
    server has added last: it may be the server's site-packages, and they may be of another Python.
    """
    models = list(filter(None, folders.split(os.pathsep)))
    search_in(models)
    *others, last = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
    if last != OWN_ROOT:
        others.append(last)
    others = [folder for folder in others if folder not in models]
    others += [folder for folder in models if not hidden_modules(folder)]
    if any(others):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, others))


def load(connection: FrontendConnection, heartbeat: Heartbeat) -> Callable[[], None] | None:
    """Load the model that the first message describes, and report the outcome.

    Returns a function that serves the model until the frontend sends a stop message; None if loading failed. Raises
    ValueError: the first message is not a load message.
    """
    message = connection.receive(wait=True)
    if message is None or message[0] != messages.LOAD:
        raise ValueError(f"expected the message {messages.LOAD!r} first, got {message!r}")
    loading: Load = message[1]
    loading["model_dir"] = loading["model_dir"] or os.getcwd()  # noqa: PTH109 - a text
    use_processors(loading["processors"])
    for name in hidden_modules(loading["model_dir"]):
        logger.warning("The model's %s.py is not imported, as Python has a module of that name: rename it", name)
    del sys.argv[1:]  # they are this process's: a model that parses arguments finds none
    try:
        serve_model, declares = load_model(loading, connection, heartbeat)
    except (FrontendGone, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic of Rust code, as tokenizers have it, is no Exception
        place = users_traceback(error)
        logger.error("Loading the model failed", exc_info=(type(error), error, place))
        status, text = load_failure(error)
        text += hint(error, loading["model_dir"])
        if status != 507 and (file := misplaced_in(loading["model_dir"])) and file not in text:
            text = f"{text.rstrip('.')}. In the model's folder, {file}."
        details = "".join(traceback.format_exception(type(error), error, place))
        failed = Loaded(ok=False, status=status, message=wire_text(text), traceback=wire_text(details), declares={})
        connection.send([messages.LOADED, failed])
        return None
    connection.send([messages.LOADED, Loaded(ok=True, status=200, message="", traceback="", declares=dict(declares))])
    return serve_model


def load_model(
    load: Load, connection: FrontendConnection, heartbeat: Heartbeat
) -> tuple[Callable[[], None], Mapping[str, Any]]:
    """Load a model; return a function that serves it until the frontend sends a stop message, and its declarations.

    Raises LoadError: the handler does not fit the contract; Exception: the model's code raised it.
    """
    if load["runtime"]:
        run, declares = importlib.import_module(load["runtime"]).load(load, connection, heartbeat)
        return run, declares
    return load_handler(load, connection, heartbeat, TorchServeHandler)


def load_handler(
    load: Load, connection: FrontendConnection, heartbeat: Heartbeat, kind: type[TorchServeHandler]
) -> tuple[Callable[[], None], Mapping[str, Any]]:
    """Load a handler that a ``kind`` of runtime calls with several rows at once, as `load_model` does."""
    service = load_service(load)
    runtime = kind(service, connection, load, claims=BatchClaims(os.environ.pop(messages.CLAIMS_VARIABLE, "")))
    prepare(service, runtime, load)
    if service.steps is not None:
        service.steps.listen(heartbeat.tell_wanted, StoreReports(heartbeat.tell_evictions, heartbeat.tell_store_size))
        runtime.open_handover(load)
    return partial(serve, connection, runtime), runtime.declares


def load_failure(error: BaseException) -> tuple[int, str]:
    """Return the status and message with which the worker reports a failed load."""
    if device_loss.memory_ran_out(error):
        return 507, "System out of memory"
    if isinstance(error, LoadError):
        return 500, str(error)
    if isinstance(error, SystemExit):
        return 500, f"The model's code called sys.exit({error.code!r}) while it was loaded"
    shown = f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError) and str(error) == f"No module named {error.name!r}":
        return 500, f"{shown}; {missing(error.name)}"
    return 500, shown


def serve(connection: FrontendConnection, runtime: TorchServeHandler) -> None:
    """Run the model until the frontend sends a stop message.

    Every message that has arrived is handled before the next step, so jobs join and cancelled jobs leave between two
    steps. All jobs that arrived before the stop message are answered before this function returns; the frontend limits
    how long that may take. A worker that has lost its device ends as soon as it has nothing to do.

    Raises ValueError: a message of an unknown kind arrived.
    """
    stopping = False
    while (is_busy := runtime.is_busy) or not stopping:
        message = connection.receive(wait=not is_busy and not device_loss.loss.reason)
        if message is None and is_busy:
            connection.step_begins()
            runtime.step()
            connection.step_ended()
            continue
        match message:
            case [messages.INFER, *fields]:
                runtime.admit(messages.decode_infer(*fields))
            case [messages.END_SEQUENCE, ended]:
                runtime.end_sequences(map(EndedSequence._make, ended))
            case [kind, number, *fields] if kind in runtime.answers:
                connection.send([messages.ANSWER, number, runtime.answers[kind](*fields)])
            case [messages.STATE, sequence_id, piece]:
                runtime.add_state(sequence_id, piece)
            case [messages.STOP]:
                stopping = True
            case None:
                device_loss.end(connection)
            case [kind, *_]:
                raise ValueError(f"the frontend sent a message of unknown kind {kind!r}")
    runtime.close()
    connection.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
