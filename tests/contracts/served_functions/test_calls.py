"""Calls of other functions in a worker: where they are possible, and what is sent."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest

from ts import CallFailed
from ts.connection.frontend_connection import FrontendConnection
from ts.contracts.served_functions.adapter import adapt
from ts.contracts.served_functions.calls import Calls
from ts.protocol.messages import CALL, CALLS_AT_ONCE, DROP_CALL, MAX_OPEN_CALLS, NEXT_PART
from ts.serve_decorator import serve


class Server:
    """Takes the messages of a worker; answers nothing by itself."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []

    def send(self, message: list[Any]) -> None:
        self.sent.append(message)


class Module:
    """A module with functions, of which ``search`` runs here."""

    __name__ = "search"

    def __init__(self) -> None:
        @serve(batch_size=8)
        def embed(texts: list[str]) -> list[int]:
            return [len(text) for text in texts]

        @serve
        def stream(text: str) -> Iterator[str]:
            yield text

        @serve
        def count_up(most: int) -> Iterator[int]:
            yield from range(most)

        @serve
        def count(text: str, state: dict) -> int:  # type: ignore[type-arg]
            return 1

        @serve
        async def search(query: str) -> int:
            return 1

        @serve
        class Speak:
            def __init__(self) -> None:
                raise AssertionError("another worker loads it")

            def predict(self, text: str) -> bytes:
                return text.encode()

        for each in (embed, stream, count_up, count, search, Speak):
            each.__module__ = "search"
        self.Speak: Any = Speak
        self.embed: Callable[..., Any] = embed
        self.stream: Any = stream
        self.count_up: Any = count_up
        self.count, self.search = count, search
        handler = adapt(cast("Any", self), "search")
        assert handler is not None
        assert handler.calls is not None
        self.calls: Calls = handler.calls
        self.server = Server()
        self.calls.open(cast("FrontendConnection", self.server), 100)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_call_is_a_message_and_its_answer_the_result() -> None:
    module = Module()
    module.calls.begin("j1")
    call = asyncio.create_task(module.embed("hello"))
    await turns()
    assert module.server.sent == [[CALL, "j1", 0, "embed", "text/plain", "*/*", b"hello"]]
    module.calls.answered(0, [200, "application/json", b"5", None, False])
    assert await call == 5


async def test_a_class_is_called_by_its_method() -> None:
    module = Module()
    module.calls.begin("j1")
    call = asyncio.create_task(module.Speak().predict("hello"))
    await turns()
    assert module.server.sent == [[CALL, "j1", 0, "Speak", "text/plain", "*/*", b"hello"]]
    module.calls.answered(0, [200, "application/octet-stream", b"sound", None, False])
    assert await call == b"sound"


async def test_a_stream_is_asked_for_part_by_part() -> None:
    module = Module()
    module.calls.begin("j1")
    stream = module.stream("hello")
    for number, text in enumerate((b"one", b"two")):
        part = asyncio.ensure_future(anext(stream))
        await turns()
        assert [each[0] for each in module.server.sent] == [CALL, *[NEXT_PART] * number]
        module.calls.answered(0, [200, "text/plain", text, None, True])
        assert await part == text.decode()
    await stream.aclose()
    assert module.server.sent[-1] == [DROP_CALL, 0]

    rest = asyncio.ensure_future(collected(module.stream("hello")))
    for answer in ([200, "text/plain", b"one", None, True], [503, "", b"", "no worker", False]):
        await turns()
        module.calls.answered(1, answer)
    with pytest.raises(CallFailed, match="stream: no worker"):
        await rest
    assert [DROP_CALL, 1] not in module.server.sent


async def test_values_in_the_lines_of_a_stream() -> None:
    module = Module()
    module.calls.begin("j1")
    rest = asyncio.ensure_future(collected(module.count_up(2)))
    for answer in (
        [200, "application/x-ndjson", b"1\n2\n", None, True],
        [200, "application/x-ndjson", b"", None, False],
    ):
        await turns()
        module.calls.answered(0, answer)
    assert await rest == [1, 2]


async def collected(stream: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in stream]


async def test_a_failure_is_an_exception() -> None:
    module = Module()
    module.calls.begin("j1")
    call = asyncio.create_task(module.embed("hello"))
    await turns()
    module.calls.answered(0, [503, "", b"", "no worker", False])
    with pytest.raises(CallFailed, match=r"^embed: no worker$") as raised:
        await call
    assert raised.value.status == 503
    with pytest.raises(CallFailed, match="embed: the values have 101 bytes; a call may have 100"):
        await module.embed("x" * 101)
    wrong = asyncio.create_task(module.embed("hello"))
    await turns()
    module.calls.answered(1, [200, "text/plain", b"five", None, False])
    with pytest.raises(CallFailed, match="embed: the result does not fit its annotation"):
        await wrong


async def test_what_cannot_be_called_is_refused_by_name() -> None:
    module = Module()
    with pytest.raises(RuntimeError, match="embed is a model of its own, which can be called only while a request"):
        module.embed("hello")
    module.calls.begin("j1")
    with pytest.raises(TypeError, match="Speak: missing a required argument: 'text'"):
        module.Speak().predict()
    with pytest.raises(TypeError, match="count has a state"):
        module.count("hello")
    with pytest.raises(TypeError, match="embed: missing a required argument: 'texts'"):
        module.embed()
    with pytest.raises(RuntimeError, match=r"embed is a model of its own, and is called with await embed\(…\)"):
        await asyncio.to_thread(module.embed, "hello")


def test_a_function_without_an_event_loop_cannot_call() -> None:
    with pytest.raises(RuntimeError, match="called with await embed"):
        Module().embed("hello")


async def test_a_call_that_nobody_waits_for_is_dropped() -> None:
    module = Module()
    module.calls.begin("j1")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(module.embed("hello"), 0.01)
    assert module.server.sent[-1] == [DROP_CALL, 0]
    module.calls.answered(0, [200, "application/json", b"5", None, False])  # it crossed the message
    await turns()


async def test_calls_of_clients_requests_wait_for_each_other() -> None:
    module = Module()
    module.calls.begin("j1")
    calls = [asyncio.create_task(module.embed("hello")) for _ in range(CALLS_AT_ONCE + 1)]
    await turns()
    assert len(module.server.sent) == CALLS_AT_ONCE
    module.calls.answered(0, [200, "application/json", b"5", None, False])
    await turns()
    assert len(module.server.sent) == CALLS_AT_ONCE + 1
    for each in calls:
        each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_calls_of_a_call_wait_for_none() -> None:
    module = Module()
    module.calls.begin("j1")
    calls = [asyncio.create_task(module.embed("hello")) for _ in range(CALLS_AT_ONCE)]
    module.calls.begin("j2", is_called=True)
    calls += [asyncio.create_task(module.embed("hello")) for _ in range(MAX_OPEN_CALLS - CALLS_AT_ONCE)]
    await turns()
    assert len(module.server.sent) == MAX_OPEN_CALLS
    with pytest.raises(CallFailed, match="embed: this worker has 1024 calls open, which is the most"):
        await module.embed("hello")
    for each in calls:
        each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_a_cancelled_handler_sees_that_before_the_end_of_its_call() -> None:
    module = Module()
    module.calls.begin("j1")
    seen: list[BaseException] = []

    async def handler() -> None:
        try:
            await asyncio.wait_for(module.embed("hello"), 10)
        except (CallFailed, asyncio.CancelledError) as error:
            seen.append(error)

    task = asyncio.create_task(handler())
    await turns()
    module.calls.answered(0, [499, "", b"", "over", False])
    task.cancel()
    await asyncio.wait([task])
    assert [*map(type, seen)] == [asyncio.CancelledError]
