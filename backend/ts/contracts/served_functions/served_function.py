"""Runs a function or class that is decorated with `ts.serve` as a handler of TorchServe's contract."""

import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ts.context import Context, RowError
from ts.contracts.served_functions.call_values import CallValues
from ts.contracts.served_functions.invalid_values import InvalidValue
from ts.contracts.served_functions.openai_functions import LIKELY, OpenAICall, answered_path
from ts.contracts.served_functions.served_objects import served_object
from ts.contracts.served_functions.stored_classes import check_storable, encoders_of
from ts.contracts.served_functions.value_types import ARRAY_FILE, array_file
from ts.jobs.errors import (
    BAD_REQUEST,
    HandlerFailed,
    JobsCancelled,
    LoadError,
    PredictionException,
    RowFailure,
    device_failure,
    text_of,
    users_traceback,
)
from ts.row_states import RowStates
from ts.runtime.result_bodies import error_status
from ts.sequence.encoding import StateEncoding
from ts.serve_decorator import DEVELOPMENT_VARIABLE, LOG, METHOD, MIGRATE, REBUILD, STATE, ServeOptions
from ts.utils.sound import Audio

if TYPE_CHECKING:  # asyncio, which a function that is no coroutine may not need
    from ts.contracts.served_functions.calls import Calls

logger = logging.getLogger(__name__)


class ServedFunction:
    """The handler around one decorated function or class, or one object of a library.

    ``options`` are the arguments of `ts.serve`; ``calls`` are those of other functions of its file, if it has others.
    """

    def __init__(self, target: Callable[..., Any], options: ServeOptions, calls: "Calls | None" = None) -> None:
        #: What the event loop tells which job runs, and what came of calls; None for a file with one function.
        self.calls = calls
        self._object = None if hasattr(target, "__name__") else served_object(target)
        self._instance = target() if isinstance(target, type) else None
        if self._instance is not None and not hasattr(self._instance, METHOD):
            raise LoadError(f"The class {target.__name__} has no method {METHOD}, which answers requests.")
        self._call: Callable[..., Any] = target if self._instance is None else getattr(self._instance, METHOD)
        example = options.example
        if self._object is not None and options.batch_size is not None:
            raise LoadError(
                f"batch_size is for functions and classes, which get lists, and {type(target).__name__} is served as it"
                " is; write a function with @serve(batch_size=...) that makes one call of its lists"
            )
        if self._object is not None:
            self._call, example = self._object.call, self._object.example if example is None else example
        self._batched = options.batch_size is not None
        self._openai = bool(options.openai)
        self._rebuild: Callable[..., Any] | None = getattr(self._instance, REBUILD, None)
        self._values = CallValues(
            self._call,
            batched=self._batched,
            logs=self._rebuild is not None,
            example=example,
            likely=LIKELY if self._openai else {},
        )
        self._description = inspect.getdoc(self._call) or inspect.getdoc(target) or ""
        is_async = inspect.iscoroutinefunction(self._call) or inspect.isasyncgenfunction(self._call)
        #: What the worker calls for each batch.
        self.entry_point: Callable[[Any, Context], Any] = self._handle_async if is_async else self._handle

    @property
    def is_stateful(self) -> bool:
        """Whether the function has a parameter for the state of the request's sequence."""
        return self._values.new_state is not None

    @property
    def declared(self) -> dict[str, Any]:
        """What the model declares, as in `ts.protocol.messages.Loaded`: its function, and tensors if it has some."""
        values = self._values
        function = values.declared | {"description": self._description}
        if self._openai and (path := answered_path(values.types)) is not None:
            function["openai"] = path
        tensors: dict[str, Any] = {"inputs": values.inputs, "outputs": values.outputs}
        tensors |= {} if self._object is None else self._object.tensors
        return {"function": function} | {name: each for name, each in tensors.items() if each}

    @property
    def rebuild(self) -> Callable[[list[Any], list[list[Any]]], Any] | None:
        """Makes states of what was appended to their logs; None if the function appends nothing."""
        return self._rebuilt if self._values.takes_log else None

    @property
    def migrate(self) -> Callable[..., Any] | None:
        """Makes states of those of other versions; None if the class has no such method, or the function no state."""
        migrate, new = getattr(self._instance, MIGRATE, None), self._values.new_state
        if migrate is None or new is None:
            return None
        kind: Any = (int, float) if new is float else new

        @functools.wraps(migrate)
        def checked(*given: Any) -> Any:
            state = migrate(*given)
            if not isinstance(state, kind):
                wanted, returned = getattr(new, "__name__", new), type(state).__name__
                raise TypeError(f"migrate returned a value of the type {returned}; the state of predict is {wanted}")
            return state

        return checked

    def _rebuilt(self, states: list[Any], entries: list[list[Any]]) -> Any:
        assert self._rebuild is not None and self._values.new_state is not None
        new = self._values.new_state
        return self._rebuild([new() if state is None else state for state in states], entries)

    def initialize(self, context: Context) -> Any:
        """Let a class load what it needs; the result is a coroutine if its ``setup`` is one.

        Raises LoadError: the model's store cannot keep the state.
        """
        self._prepare_states(context)
        setup = getattr(self._instance, "setup", None) if self._object is None else self._object.setup
        gpu = context.system_properties.get("gpu_id")
        return None if setup is None else setup("cpu" if gpu is None else f"cuda:{gpu}")

    def _prepare_states(self, context: Context) -> None:
        """Let a store keep the classes that the state is made of, or refuse a state that it cannot keep."""
        new, store = self._values.new_state, (context.cache_settings or {}).get("store", "memory")
        if not isinstance(new, type) or store == "memory":
            return
        context.state_encoders.update(encoders_of(new))
        if not self._values.takes_log:  # else what is appended is stored, whatever the state is
            check_storable(self._values.name, new, new, StateEncoding(context.state_encoders))

    def _handle(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        batch = _Rows(self._values, data, context, openai=self._openai)
        with _told_in_development():
            for call in batch.calls(batched=self._batched):
                with batch.failing_alone(call):
                    result = self._call(**call.arguments)
                    if self._values.streams:
                        with closing(result) as parts:
                            for part in parts:
                                batch.send(call, part)
                        batch.end(call)
                    else:
                        batch.keep(call, result)
                    batch.store(call)
        return batch.results

    async def _handle_async(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        batch = _Rows(self._values, data, context, openai=self._openai)
        with _told_in_development():
            for call in batch.calls(batched=self._batched):
                result = self._call(**call.arguments)
                if self._values.streams:
                    async with aclosing(result) as parts:
                        async for part in parts:
                            batch.send(call, part)
                    batch.end(call)
                else:
                    batch.keep(call, await result)
                batch.store(call)
        return batch.results


@contextmanager
def _told_in_development() -> Iterator[None]:
    """Let the answer tell what the function has raised, on a server for trying things out; else as TorchServe does."""
    try:
        yield
    except (PredictionException, JobsCancelled, RowFailure, MemoryError):
        raise
    except Exception as error:
        if DEVELOPMENT_VARIABLE not in os.environ or device_failure(error) is not None:
            raise
        logger.warning("Invoking custom service failed.", exc_info=(type(error), error, users_traceback(error)))
        raise RowFailure(500, f"{type(error).__name__}: {text_of(error)}") from None


def _row_error(error: Exception) -> RowError:
    """Log an exception of one row of a batch; return the error that answers it."""
    if isinstance(error, RowFailure):
        return RowError(error.status, error.message, isinstance(error, HandlerFailed))
    if isinstance(error, PredictionException):
        status = error_status(error.error_code)
        return RowError(status if status >= 400 else 500, error.message)
    logger.warning("One request of a batch has failed.", exc_info=(type(error), error, users_traceback(error)))
    if DEVELOPMENT_VARIABLE in os.environ:
        return RowError(500, f"{type(error).__name__}: {text_of(error)}")
    return RowError(503, "Prediction failed", is_defect=True)


class _FunctionCall(NamedTuple):
    """One call of the function, for the rows with these indexes."""

    indexes: list[int]
    arguments: dict[str, Any]
    batched: bool

    def of_rows(self, result: Any) -> list[tuple[int, Any]]:
        """Return the row's index with each value of a result. Raises ValueError: there is not one for each row."""
        values = result if self.batched else [result]
        if not isinstance(values, list) or len(values) != len(self.indexes):
            count = f"a list of {len(values)}" if isinstance(values, list) else f"a {type(values).__name__}"
            raise ValueError(f"{count} is returned for {len(self.indexes)} requests; return a list with one for each")
        return list(zip(self.indexes, values, strict=True))


class _Log:
    """The log of a row's sequence, as functions see it."""

    __slots__ = ("_index", "_states")

    def __init__(self, states: RowStates, index: int) -> None:
        self._states = states
        self._index = index

    def append(self, entry: Any) -> None:
        """Let the step store this entry in place of the state; see `ts.row_states.RowStates.append`."""
        self._states.append(self._index, entry)


class _Rows:
    """The rows of one batch: their arguments, states and results."""

    def __init__(
        self, values: CallValues, data: list[dict[str, Any]], context: Context, *, openai: bool = False
    ) -> None:
        self._values = values
        self._openai = openai
        #: The requests of OpenAI's clients, by index.
        self._asked: dict[int, OpenAICall] = {}
        self._data = data
        self._context = context
        self.results: list[Any] = [b""] * len(data)

    def calls(self, *, batched: bool) -> Iterator[_FunctionCall]:
        """Yield the calls to make; refuse rows without the values that the function takes."""
        rows = [(index, self._read(index, row)) for index, row in enumerate(self._data)]
        read = [(index, arguments) for index, arguments in rows if arguments is not None]
        if batched and read:
            names = read[0][1]
            lists = {name: [arguments[name] for _, arguments in read] for name in names}
            yield _FunctionCall([index for index, _ in read], lists, batched=True)
        elif not batched:
            for index, arguments in read:
                yield _FunctionCall([index], arguments, batched=False)

    def _read(self, index: int, row: dict[str, Any]) -> dict[str, Any] | None:
        """Return the arguments of the call for a row; None if the row has its answer."""
        context = self._context
        if context.get_request_header(index, "describe") == "True":
            self.results[index] = self._values.declared
            return None
        try:
            if self._openai:
                row = self._of_openai(index, row)
            if (tensors := context.get_open_inference_request(index)) is not None:
                self._values.check_names([each.name for each in tensors.inputs])
            arguments = self._values.read(row)
        except InvalidValue as error:
            with suppress(JobsCancelled):  # the other rows of the batch may still be open
                # The other protocols have errors of their own, without such a list.
                is_openais = bool(context.get_request_header(index, "url_path"))
                is_plain = not is_openais and context.get_open_inference_request(index) is None
                details = error.errors if is_plain else None
                _send(context, [], {index: ""}, str(error), 400, BAD_REQUEST, details)
            return None
        if self._values.new_state is not None:
            state = context.state.get(index)
            arguments[STATE] = self._values.new_state() if state is None else state
            if self._values.takes_log:
                arguments[LOG] = _Log(context.state, index)
        return arguments

    def _of_openai(self, index: int, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row of a request; of one of OpenAI's clients the members that the function takes.

        Raises InvalidValue: the function does not answer the request's path, or does not take a part of a message.
        """
        path = self._context.get_request_header(index, "url_path")
        asked = OpenAICall.of(path, row.get("body"), self._values.types)
        if asked is None:
            return row
        self._asked[index] = asked
        self._context.set_response_content_type(index, asked.media_type)
        return asked.arguments

    @contextmanager
    def failing_alone(self, call: _FunctionCall) -> Iterator[None]:
        """Let an exception of a call fail only its row, where the batch has others that have calls of their own."""
        try:
            yield
        except (JobsCancelled, MemoryError):
            raise
        except Exception as error:
            if call.batched or len(self._data) == 1 or device_failure(error) is not None:
                raise
            self._context.request_processor[call.indexes[0]].error = _row_error(error)

    def send(self, call: _FunctionCall, part: Any) -> None:
        written = {}
        for index, value in call.of_rows(part):
            asked = self._asked.get(index)
            text = self._written(index, value, streams=True) if asked is None else asked.part(value)
            if text is not None:
                written[index] = text
        if written:
            _send(self._context, written, dict.fromkeys(written, ""), "", 200)

    def end(self, call: _FunctionCall) -> None:
        """Keep what ends the answers of OpenAI's form, once a function has yielded all parts."""
        for index in call.indexes:
            if (asked := self._asked.get(index)) is not None:
                self.results[index] = asked.end()

    def keep(self, call: _FunctionCall, result: Any) -> None:
        """Keep the results; of a batch, one that is an exception or cannot be written fails its own row only."""
        for index, value in call.of_rows(result):
            asked = self._asked.get(index)
            try:
                if call.batched and isinstance(value, Exception):
                    raise value
                written = self._written(index, value, streams=False) if asked is None else asked.whole(value)
            except Exception as error:
                if not call.batched or device_failure(error) is not None:  # with the device, all rows have failed
                    raise
                self._context.request_processor[index].error = _row_error(error)
            else:
                self.results[index] = written

    def _written(self, index: int, value: Any, *, streams: bool) -> Any:
        if DEVELOPMENT_VARIABLE in os.environ and not self._values.told_misfit:
            self._tell_misfit(value)
        if self._context.get_open_inference_request(index) is not None:  # the protocol has a form of its own
            return value if self._values.holds_arrays(value) else self._values.written(value)[0]
        if isinstance(value, Audio) and (raw := self._raw_audio(index, value)) is not None:
            return raw
        if hasattr(value, "tolist") and not streams and self._accepts(index, ARRAY_FILE):
            self._context.set_response_content_type(index, ARRAY_FILE)
            return array_file(value)
        written, media_type = self._values.written_part(value) if streams else self._values.written(value)
        self._context.set_response_content_type(index, media_type)
        return written

    def _tell_misfit(self, value: Any) -> None:
        """Log how the first result that does not fit its annotation differs from it."""
        if misfit := self._values.misfit(value):
            self._values.told_misfit = True
            logger.warning("A result of %s does not fit its annotation: %s", self._values.name, misfit)

    def _raw_audio(self, index: int, value: Audio) -> bytes | None:
        """Return sound without a file's header, as the request accepts it (``audio/pcm;rate=24000``); None if not."""
        accept = self._context.get_request_header(index, "accept")
        if not isinstance(accept, str) or not accept.startswith("audio/pcm"):
            return None
        from ts.handler_utils.audio import raw_audio  # needs numpy, as the sound does

        raw = raw_audio(value.samples, value.rate, accept)
        if raw is None:
            return None
        self._context.set_response_content_type(index, raw[1])
        return raw[0]

    def _accepts(self, index: int, media_type: str) -> bool:
        accepted = self._context.get_request_header(index, "accept")
        return isinstance(accepted, str) and media_type in accepted.lower()

    def store(self, call: _FunctionCall) -> None:
        """Keep the states of the sequences that a call has advanced."""
        if self._values.new_state is not None:
            states = call.arguments[STATE]
            for index, state in zip(call.indexes, states if call.batched else [states], strict=True):
                self._context.state[index] = state


def _send(
    context: Context,
    values: Any,
    ids: Mapping[int, str],
    message: str,
    status: int,
    kind: str = "",
    details: Any = None,
) -> None:
    """Send a part of the answers to these rows, see `ts.runtime.batch.Batch.send_part`."""
    assert context.send_part is not None
    context.send_part(values, ids, message, status, kind, details)
