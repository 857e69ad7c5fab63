"""A server of this package's own, with one service whose methods take and give plain bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from grpc import aio
from tests.net.http2.raw_client import RawClient

from torchserve_py.net.admission import Admission
from torchserve_py.net.http2.grpc_messages import MessageLimit
from torchserve_py.net.http2.grpc_server import GrpcServer
from torchserve_py.net.http2.grpc_status import StatusCode
from torchserve_py.net.http2.rpc import LaterReply, Rpc, RpcLimits, RpcMethod

SERVICE = "test.Service"
LIMITS = RpcLimits(streams=100)
MESSAGE_SIZE = 4 << 20


def limit_of(size: int) -> MessageLimit:
    """The limit of a method."""
    return MessageLimit(size, "a test sets")


class Methods:
    """The handlers, and what they saw."""

    def __init__(self) -> None:
        self.running = 0
        self.cancelled = 0
        self.written = 0
        self.is_held_up = False
        self.context: Any = None  # of the last call of `later`

    async def echo(self, request: bytes, context: Any) -> bytes:
        """Unary."""
        return request

    async def tell(self, request: bytes, context: Any) -> bytes:
        """Metadata there and back."""
        context.trailing_metadata = (("last", "2"), ("raw-bin", b"\0\xff"))
        return repr((sorted(context.metadata), context.peer)).encode()

    async def count(self, request: bytes, context: Any) -> None:
        """As many messages of a size as the request says."""
        number, size = map(int, request.split())
        for _ in range(number):
            held_up = asyncio.get_running_loop().call_later(1, setattr, self, "is_held_up", True)
            await context.write(b"x" * size)
            held_up.cancel()
            self.written += 1

    async def generate(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """The letters of the request."""
        for letter in request:
            yield bytes((letter,))

    async def talk(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Each message back."""
        async for request in requests:
            yield request

    async def total(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """The size of all messages together."""
        return b"%d" % sum([len(request) async for request in requests])

    async def wait(self, request: bytes, context: Any) -> bytes:
        """For ever."""
        self.running += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return b""

    async def refuse(self, request: bytes, context: Any) -> None:
        """An error, as the request says."""
        context.end(StatusCode.NOT_FOUND, request.decode(), (("cause", "test"),))

    async def raise_(self, request: bytes, context: Any) -> bytes:
        """What a handler with a bug does."""
        raise ValueError("a bug")

    def later(self, request: bytes, context: Any) -> Any:
        """Without a task; the first word of the request says what it answers, and when."""
        word = request.split()[0]
        if word == b"now":
            return request
        self.running += 1
        self.context = context

        def ended(_: Any) -> None:
            self.running -= 1
            self.cancelled += context.code is not StatusCode.OK

        context.on_end.append(ended)
        answers = {
            b"message": lambda: context.follow(request),
            b"coroutine": lambda: context.follow(self.echo(request, context)),
            b"error": lambda: context.end(StatusCode.NOT_FOUND, "none", (("cause", "test"),)),
            b"exception": lambda: context.raised(ValueError("a bug")),
        }
        if word == b"bug":
            raise ValueError("a bug")
        return _Later(answers.get(word), is_soon=request.endswith(b" soon"))


class _Later(LaterReply):
    """Answers a call at once or soon, or never."""

    def __init__(self, answer: Callable[[], None] | None, *, is_soon: bool) -> None:
        self._answer, self._is_soon = answer, is_soon

    def answer(self, call: Rpc) -> None:
        if self._answer is not None and self._is_soon:
            asyncio.get_running_loop().call_later(0.01, self._answer)
        elif self._answer is not None:
            self._answer()


def served(methods: Methods, limit: MessageLimit) -> dict[str, RpcMethod]:
    """The methods by path."""
    unary = {
        "Echo": methods.echo,
        "Tell": methods.tell,
        "Count": methods.count,
        "Generate": methods.generate,
        "Wait": methods.wait,
        "Refuse": methods.refuse,
        "Raise": methods.raise_,
        "Later": methods.later,
    }
    of_streams = {"Talk": methods.talk, "Total": methods.total}
    return {
        **{f"/{SERVICE}/{name}": RpcMethod(serve, limit) for name, serve in unary.items()},
        **{f"/{SERVICE}/{name}": RpcMethod(serve, limit, takes_stream=True) for name, serve in of_streams.items()},
    }


class Running:
    """A server that listens."""

    def __init__(self, server: GrpcServer, methods: Methods, port: int) -> None:
        self.server = server
        self.methods = methods
        self.port = port

    def channel(self, **options: Any) -> aio.Channel:
        """A client of it."""
        return aio.insecure_channel(f"127.0.0.1:{self.port}", options=tuple(options.items()))

    async def until(self, **values: int | bool) -> None:
        """Wait for the handlers to have seen something."""
        async with asyncio.timeout(60):
            while any(getattr(self.methods, name) != value for name, value in values.items()):
                await asyncio.sleep(0.001)


async def start(
    limits: RpcLimits = LIMITS,
    admission: Admission | None = None,
    message_size: int = MESSAGE_SIZE,
    **more: RpcMethod,
) -> Running:
    """A server, with these methods besides the usual ones."""
    methods = Methods()
    usual = served(methods, limit_of(message_size))
    server = GrpcServer({**usual, **{f"/{SERVICE}/{name}": each for name, each in more.items()}}, limits, admission)
    return Running(server, methods, await server.listen("127.0.0.1", 0, None))


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """A server that ends with the test."""
    each = await start()
    yield each
    await each.server.stop(0)


@pytest.fixture
async def client(running: Running) -> AsyncIterator[RawClient]:
    """One that may do what it likes; others must notice nothing."""
    each = RawClient(*await asyncio.open_connection("127.0.0.1", running.port))
    yield each
    each.writer.close()
    async with running.channel() as channel:
        assert await channel.unary_unary("/test.Service/Echo")(b"x") == b"x"
