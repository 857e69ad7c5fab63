"""A request's way through the graph: what nodes get, what comes out, and what happens when one fails."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from torchserve_py.apis.workflows.errors import NodeFailed
from torchserve_py.apis.workflows.execution import RunnableNode, execute
from torchserve_py.apis.workflows.spec import Dag, Node, NodeSettings
from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.serving.errors import ModelNotFound

REQUEST = Call(((b"x-colour", b"red"),), b"in", "text/plain")


@dataclass
class Try:
    """One try of a node."""

    headers: Sequence[tuple[Any, Any]]
    body: Any
    content_type: str | None
    call: Call

    def answer(self, body: bytes, *, more: bool = False, status: int = 200, error: str | None = None) -> None:
        self.call.deliver(Part(self.call.id, more, status, "", [], body, error))


@dataclass
class FakeModel:
    """Hands every try to `behave`."""

    behave: Callable[[Try], None]
    calls: list[Try] = field(default_factory=list)
    cancelled: list[Call] = field(default_factory=list)
    submitted: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(self, call: Call) -> None:
        call.owner = self
        given = Try(tuple(call.headers), call.body, call.content_type, call)
        self.calls.append(given)
        self.submitted.set()
        self.behave(given)

    def was_read(self, parts: Call) -> None:
        pass

    def gave_up(self, parts: Call) -> None:
        self.cancelled.append(parts)


class FakeModels(dict[str, FakeModel]):
    """Looks models up, and submits to them."""

    def submit(self, model: FakeModel, call: Call) -> None:
        model.submit(call)

    def get(self, name: str, version: str | None = None) -> FakeModel:  # type: ignore[override]
        if name not in self:
            raise ModelNotFound(name)
        assert version == "1.0"
        return self[name]


def answering(text: str) -> Callable[[Try], None]:
    return lambda call: call.answer(text.encode())


def never(call: Try) -> None:
    pass


def runnable(names: Iterable[str], attempts: int = 1, timeout_ms: int = 60000) -> dict[str, RunnableNode]:
    settings = NodeSettings(
        min_workers=1, max_workers=1, batch_size=1, max_batch_delay_ms=0, attempts=attempts, timeout_ms=timeout_ms
    )
    return {name: RunnableNode(Node(name, None, settings), name, "1.0") for name in names}


async def run(edges: dict[str, list[str]], models: FakeModels, *, attempts: int = 1, timeout_ms: int = 60000) -> bytes:
    """Return the whole answer."""
    return b"".join([part.body async for part in parts(edges, models, attempts, timeout_ms)])


async def parts(
    edges: dict[str, list[str]], models: FakeModels, attempts: int = 1, timeout_ms: int = 60000
) -> AsyncIterator[Part]:
    dag = Dag(edges)
    nodes = runnable(dag.parents, attempts, timeout_ms)
    async with asyncio.timeout(60):
        async for part in execute(dag, nodes, models, REQUEST):
            yield part


async def test_what_each_node_gets() -> None:
    models = FakeModels({name: FakeModel(answering(name.upper())) for name in ("pre", "cat", "dog", "join")})
    edges = {"pre": ["cat", "dog"], "cat": ["join"], "dog": ["join"]}
    assert await run(edges, models) == b"JOIN"
    given = {
        name: [(call.headers, call.body, call.content_type) for call in model.calls] for name, model in models.items()
    }
    assert given["pre"] == [(REQUEST.headers, b"in", "text/plain")]
    assert given["cat"] == given["dog"] == [((), b"PRE", None)]
    assert given["join"] == [((), [("cat", None, b"CAT"), ("dog", None, b"DOG")], None)]


async def test_all_nodes_are_charged_to_the_account_of_the_request() -> None:
    models = FakeModels({name: FakeModel(answering(name)) for name in ("pre", "cat")})
    account: Any = SimpleNamespace(client="ada")
    call = Call((), b"in", account=account)
    async for _ in execute(Dag({"pre": ["cat"]}), runnable(("pre", "cat")), models, call):  # type: ignore[arg-type]
        pass
    nodes = [models[name].calls[0].call for name in ("pre", "cat")]
    assert [(each.account, each.depth, each.is_part_of_another) for each in nodes] == [
        (account, 0, True),
        (account, 1, True),
    ]


async def test_independent_nodes_run_at_the_same_time() -> None:
    models = FakeModels({"pre": FakeModel(answering("{}")), "a": FakeModel(never), "b": FakeModel(never)})
    running = asyncio.create_task(run({"pre": ["a", "b"]}, models))
    async with asyncio.timeout(60):
        for name in "ab":
            await models[name].submitted.wait()
    for name in "ab":
        models[name].calls[0].answer(b'{"by": "%s"}' % name.encode())
    assert json.loads(await running) == {"a": {"by": "a"}, "b": {"by": "b"}}


@pytest.mark.parametrize("answer", [b"[1]", b"not JSON", b"\xff", b"[" * 100_000])
async def test_each_of_several_leaves_must_answer_with_an_object(answer: bytes) -> None:
    models = FakeModels({"pre": FakeModel(answering("")), "a": FakeModel(answering("{}"))})
    models["b"] = FakeModel(lambda call: call.answer(answer))
    with pytest.raises(NodeFailed, match=r"^Error executing b: its answer is no JSON object"):
        await run({"pre": ["a", "b"]}, models)


def stream(call: Try) -> None:
    call.call.deliver(
        Part(call.call.id, True, 200, "", [["content-type", "text/plain"], ["x-own", "1"]], b"one,", None)
    )
    call.answer(b"two,", more=True)
    call.answer(b"three")


async def test_the_only_leaf_streams_and_the_others_give_one_answer() -> None:
    models = FakeModels({"pre": FakeModel(stream), "last": FakeModel(stream)})
    passed_on = [part async for part in parts({"pre": ["last"]}, models)]
    assert [(part.more, bytes(part.body)) for part in passed_on] == [
        (True, b"one,"),
        (True, b"two,"),
        (False, b"three"),
    ]
    assert passed_on[0].headers == [["content-type", "text/plain"]]
    assert models["last"].calls[0].body == b"one,two,three"


async def test_a_stream_that_has_begun_is_not_tried_again() -> None:
    def broken(call: Try) -> None:
        call.answer(b"one,", more=True)
        call.call.fail(Cause.worker_died)

    models = FakeModels({"m": FakeModel(broken)})
    answer = parts({"m": []}, models, attempts=3)
    assert (await anext(answer)).body == b"one,"
    with pytest.raises(NodeFailed) as error:
        await anext(answer)
    assert (error.value.cause, len(models["m"].calls)) == (Cause.worker_died, 1)


async def test_a_reader_that_leaves_a_stream_cancels_it() -> None:
    models = FakeModels({"m": FakeModel(lambda call: call.answer(b"one,", more=True))})
    answer = execute(Dag({"m": []}), runnable(["m"]), models, REQUEST)
    assert (await anext(answer)).body == b"one,"
    await answer.aclose()
    assert models["m"].cancelled == [models["m"].calls[0].call]


async def test_a_failed_try_is_repeated_as_often_as_said() -> None:
    def third_time_lucky(call: Call) -> None:
        tries = len(models["m"].calls)
        call.answer(b"done", error=None if tries == 3 else "no luck", status=200 if tries == 3 else 503)

    models = FakeModels({"m": FakeModel(third_time_lucky)})
    assert await run({"m": []}, models, attempts=3) == b"done"
    models["m"].calls.clear()
    with pytest.raises(NodeFailed, match=r"^Error executing m: no luck$"):
        await run({"m": []}, models, attempts=2)
    assert len(models["m"].calls) == 2


async def test_a_node_that_takes_too_long_is_cancelled_and_named() -> None:
    models = FakeModels({"m": FakeModel(never)})
    with pytest.raises(NodeFailed, match=r"^Error executing m: no answer within 10 ms$"):
        await run({"m": []}, models, attempts=2, timeout_ms=10)
    assert models["m"].cancelled == [call.call for call in models["m"].calls]
    assert len(models["m"].calls) == 2


async def test_the_first_failure_ends_the_rest() -> None:
    models = FakeModels({name: FakeModel(answering("")) for name in ("pre", "after")})
    models["slow"] = FakeModel(never)
    models["bad"] = FakeModel(lambda call: call.call.fail(Cause.queue_full))
    with pytest.raises(NodeFailed) as error:
        await run({"pre": ["slow", "bad"], "slow": ["after"], "bad": ["after"]}, models)
    assert (error.value.node, error.value.cause) == ("bad", Cause.queue_full)
    assert models["slow"].cancelled == [call.call for call in models["slow"].calls]
    assert models["after"].calls == []


async def test_a_status_of_an_error_is_one() -> None:
    models = FakeModels({"m": FakeModel(lambda call: call.answer(b"no such cat", status=404))})
    with pytest.raises(NodeFailed, match=r"^Error executing m: its handler answered with status 404 no such cat$"):
        await run({"m": []}, models)


async def test_a_model_that_is_gone() -> None:
    with pytest.raises(NodeFailed, match=r"^Error executing m: Model not found: m$") as error:
        await run({"m": []}, FakeModels())
    assert error.value.cause is Cause.unregistered


def in_sequence(ends: bool = False) -> Call:
    """Return a call of a sequence, whose client names no step."""
    call = Call((), b"in")
    headers = (("ts_request_sequence_id", "s"), ("ts_request_id", call.id))
    call.sequence = SequenceRequest("s", False, ends, headers)
    return call


async def run_sequence(call: Call, models: FakeModels, stateful: str, attempts: int = 1, ms: int = 60000) -> None:
    """Send a call through a chain of all models, of which one keeps sequences."""
    names = list(models)
    nodes = runnable(names, attempts, ms)
    nodes[stateful] = replace(nodes[stateful], is_stateful=True)
    dag = Dag({name: names[i + 1 : i + 2] for i, name in enumerate(names)})
    async for _ in execute(dag, nodes, models, call):  # type: ignore[arg-type]
        pass


async def test_only_nodes_that_keep_sequences_get_the_sequence() -> None:
    models = FakeModels({name: FakeModel(answering(name)) for name in ("pre", "memory", "last")})
    call = in_sequence()
    await run_sequence(call, models, "memory")
    given = {name: model.calls[0] for name, model in models.items()}
    assert {name: each.call.sequence for name, each in given.items()} == {
        "pre": None,
        "memory": call.sequence,
        "last": None,
    }
    headers = dict(given["memory"].headers)
    assert headers.pop(":request-digest")
    assert headers == {"ts_request_sequence_id": "s", "ts_request_id": call.id}
    assert given["last"].headers == ()


async def test_a_sequence_that_is_over_is_not_begun_anew_by_a_second_try() -> None:
    models = FakeModels({"memory": FakeModel(lambda call: call.call.fail(Cause.sequence_lost))})
    with pytest.raises(NodeFailed) as error:
        await run_sequence(in_sequence(), models, "memory", attempts=3)
    assert (error.value.cause, len(models["memory"].calls)) == (Cause.sequence_lost, 1)


async def test_a_step_that_takes_too_long_may_count_all_the_same() -> None:
    models = FakeModels({"pre": FakeModel(answering("")), "memory": FakeModel(never)})
    with pytest.raises(NodeFailed) as error:
        await run_sequence(in_sequence(), models, "memory", attempts=2, ms=10)
    assert error.value.cause is Cause.outcome_unknown
    first, second = (dict(each.headers)["ts_request_id"] for each in models["memory"].calls)
    assert first == second, "of two tries one counts"


async def test_a_client_that_hangs_up_cancels_what_runs() -> None:
    models = FakeModels({"m": FakeModel(never)})
    running = asyncio.create_task(run({"m": []}, models))
    async with asyncio.timeout(60):
        await models["m"].submitted.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert models["m"].cancelled == [models["m"].calls[0].call]
