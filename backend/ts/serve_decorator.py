"""`serve`: makes a function, or a class with a method ``predict``, a model, without TorchServe's handler interface.

    @serve(batch_size=8)
    def shout(texts: list[str]) -> list[str]:
        return [text.upper() for text in texts]

The decorated function or class stays what it is, so that tests can call it. The server reads the arguments of `serve`
from the source, without running the source, so they are literals.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, overload

#: The attribute of a decorated function or class with its `ServeOptions`.
MARK: Final = "__torchserve__"
#: The name of the parameter that gets the state of the request's sequence.
STATE: Final = "state"
#: The name of the parameter whose ``append`` stores what is new, in a class with the method of the next name.
LOG: Final = "log"
#: The method of a decorated class that makes states of what was appended.
REBUILD: Final = "rebuild"
#: The method of a decorated class that makes states of this version of the model of those of another one.
MIGRATE: Final = "migrate"
#: The method of a decorated class that answers requests.
METHOD: Final = "predict"
#: The variable of the environment that `torchserve-py serve` sets where only this machine reaches the server: answers
#: tell what the code of models has raised.
DEVELOPMENT_VARIABLE: Final = "TS_DEVELOPMENT"


class CallFailed(Exception):
    """Another function of the file, which was called with ``await other(…)``, has given no result.

    Attributes:
        status: The HTTP status that a client would have got for the same request.
        message: What went wrong; it begins with the name of the called function.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return self.message


T = TypeVar("T")
#: The objects that were given to `serve` in this process, which is a worker with one model.
OBJECTS: Final[list[tuple[Any, "ServeOptions"]]] = []


class ServeOptions(NamedTuple):
    """The arguments of `serve`; None if not given."""

    batch_size: int | None = None
    max_batch_delay: int | None = None
    store: str | None = None
    idle: float | None = None
    sequences: int | None = None
    threads: int | None = None
    openai: bool | None = None
    example: Any = None


@overload
def serve(target: T) -> T: ...
@overload
def serve(
    *,
    batch_size: int | None = None,
    max_batch_delay: int | None = None,
    store: str = "memory",
    idle: float | None = None,
    sequences: int | None = None,
    threads: int | None = None,
    openai: bool = False,
    example: Any = None,
) -> Callable[[T], T]: ...
def serve(target: T | None = None, **options: Any) -> T | Callable[[T], T]:
    """Mark the one function, class or object of a file that is the model.

    Args:
        target: The function, or a class with a method ``predict`` and perhaps ``setup(device)``,
            ``rebuild(states, entries)`` and ``migrate(state, from_version)``; or an object of a library: a pipeline of
            transformers, an estimator of scikit-learn, a `torch.nn.Module`, a session of ONNX Runtime.
        batch_size: The most requests that one call gets; then each parameter is a list with a value of each request,
            and so is the result.
        max_batch_delay: How long a request waits for others to fill its batch, in milliseconds.
        store: Where the parameter ``state`` is kept: in the ``memory`` of the worker, or where it outlives that: in a
            ``file``, or one that a URL names, ``file:///var/lib/states.db``; in Redis, ``redis://host:6379/0``, or its
            Sentinels, ``redis+sentinel://host:26379,host:26379/mymaster``. With ``redis`` alone the URL is in
            ``model-config.yaml``.
        idle: After how many seconds without a request a state leaves the worker's memory (600). With a store its
            sequence goes on from there, for 30 days; without one the sequence is over.
        sequences: How many states a model may have in memory at once (1,000). With a store the one that was not used
            for the longest time makes room for another; without one a request that begins another gets 503.
        threads: How many threads each worker computes with; its share of the processors if not given.
        openai: Whether OpenAI's clients may use the model: a parameter ``messages`` makes it answer chat completions,
            ``prompt`` completions, ``input`` embeddings.
        example: A request for descriptions of the model: the value of the one parameter, or a dict with a value for
            each. The printed curl, the page ``/docs`` and the console begin with it.
    """
    chosen = ServeOptions(**options)

    def mark(marked: T) -> T:
        if hasattr(marked, "__name__"):  # a function or a class
            setattr(marked, MARK, chosen)
        else:
            OBJECTS.append((marked, chosen))
        return marked

    return mark if target is None else mark(target)
