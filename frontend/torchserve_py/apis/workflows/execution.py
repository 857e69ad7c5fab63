"""Runs one request through the graph of a workflow.

Each node is a task that waits for its parents, so independent nodes run at the same time. The first node that fails in
its last attempt ends the others: their jobs are cancelled, and the request gets the error of that node. The only leaf
runs last, and its answer is passed on part by part.

A request of a sequence is a step of the sequence with that id at each node that keeps sequences. The client's number or
id of the request is the step's at all of them, so a request that is repeated gets the kept answers of the nodes that
have counted it, and runs at the others.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from torchserve_py.apis.workflows.errors import NodeFailed
from torchserve_py.apis.workflows.spec import Dag, Node
from torchserve_py.base.bounded_json import UnreadableJson, check_object
from torchserve_py.base.causes import Cause
from torchserve_py.base.task_group import TaskGroup
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.jobs.parts import JobFailed, Part
from torchserve_py.core.serving.errors import ModelNotFound, ModelVersionNotFound
from torchserve_py.core.serving.serving import Serving
from torchserve_py.endpoints.client_call import HttpCall, HttpDialect
from torchserve_py.endpoints.failures import is_clients_mistake
from torchserve_py.endpoints.responses import Responses
from torchserve_py.endpoints.time_limits import seconds_left
from torchserve_py.net.http1.request import Request
from torchserve_py.net.running_time import running_time
from ts.context import RequestProcessor
from ts.protocol.media_types import JSON
from ts.protocol.messages import REQUEST_DIGEST, REQUEST_ID, SAGEMAKER_CLOSE, InferRow
from ts.sequences.steps.request_digest import digest_of_values
from ts.sequences.steps.step import INTERRUPTED_HEADER

logger = logging.getLogger(__name__)

#: What reads forms in workers; imported only when the first form comes.
_FORMS: Final = "ts.contracts.forms.form_bodies"
#: The headers of its node that a workflow's answer has.
_PASSED_ON: Final = frozenset(("content-type", INTERRUPTED_HEADER))
#: With these a node's sequence is over, which the client has to know: a second try would begin another one.
_OVER: Final = frozenset(
    (Cause.sequence_lost, Cause.sequence_expired, Cause.sequence_ended, Cause.sequence_unknown, Cause.version_gone)
)


@dataclass(frozen=True, slots=True)
class RunnableNode:
    """A node and the model version that runs it.

    Attributes:
        is_stateful: Whether it keeps sequences.
        queue_size: How many requests may wait for it.
    """

    node: Node
    model_name: str
    model_version: str
    is_stateful: bool = False
    queue_size: int = 100


class _Runs:
    """Takes what the reader of a workflow's answer does."""

    def was_read(self, call: Call) -> None:
        """Go on: there is room for the next part."""
        assert isinstance(call, WorkflowCall), "only these have this owner"
        call.was_read.set()

    def gave_up(self, call: Call) -> None:
        """End the run: the client has left."""
        assert isinstance(call, WorkflowCall), "only these have this owner"
        call.task.cancel()


_RUNS: Final = _Runs()


class WorkflowCall(HttpCall):
    """A call of a workflow, which runs in ``task``; its reader gives up by cancelling it.

    ``failure`` names the node that gave no answer, if one did not.
    """

    __slots__ = ("_name", "failure", "task", "was_read")

    failure: NodeFailed | None
    task: asyncio.Task[None]
    was_read: asyncio.Event

    def __init__(
        self,
        request: Request,
        responses: Responses,
        dialect: HttpDialect,
        name: str,
        body: bytes,
        content_type: str | None,
    ) -> None:
        super().__init__(request, responses, dialect, None, None, request.raw_headers, body, content_type)
        self.by_default = False  # the nodes name their versions
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def in_sequence(self, sequence: SequenceRequest) -> None:
        """Make the call a step of a sequence, which the call's id names at all nodes if its client does not."""
        if sequence.step is None and REQUEST_ID not in dict(sequence.headers):
            sequence = sequence._replace(headers=(*sequence.headers, (REQUEST_ID, self.id)))
        self.sequence, self.sequence_id = sequence, sequence.id
        self.headers = (*self.headers, *sequence.headers)

    def run(self, answer: AsyncGenerator[Part]) -> None:
        """Pass on what gives the workflow's answer."""
        self.owner = _RUNS
        self.failure = None
        self.was_read = asyncio.Event()
        self.task = asyncio.create_task(self._run(answer))

    async def _run(self, answer: AsyncGenerator[Part]) -> None:
        try:
            async with aclosing(answer) as parts:
                async for part in parts:
                    self.was_read.clear()
                    self.deliver(part._replace(job_id=self.id))
                    while part.more and self.buffered_bytes:
                        await self.was_read.wait()
                        self.was_read.clear()
        except NodeFailed as error:
            self.failure = error.with_traceback(None)  # which holds this frame
            if error.refusal is not None:
                self.deliver(error.refusal._replace(job_id=self.id, error=str(error)))
            elif error.cause is None:
                self._deliver_error(str(error))
            else:
                self.fail(error.cause)
        except asyncio.CancelledError:
            return  # a cancelled task holds the error, whose traceback holds this frame, which holds the task
        except Exception as error:
            logger.exception("Workflow request %s failed", self.id)
            self._deliver_error(str(error))

    def _deliver_error(self, error: str) -> None:
        self.deliver(Part(self.id, False, 500, "", [], b"", error))


async def execute_step(
    dag: Dag, nodes: Mapping[str, RunnableNode], serving: Serving, call: Call, sequence: SequenceRequest
) -> AsyncGenerator[Part]:
    """Send a step of a sequence through the graph, as `execute` does.

    If it fails at a node after another one has ended the sequence, it ends at all, so that the next sequence under its
    id begins everywhere. Not if the client has named the step: sent again, that ends it at the nodes which have failed.
    """
    answered: set[str] = set()
    try:
        async with aclosing(execute(dag, nodes, serving, call, answered)) as parts:
            async for part in parts:
                yield part
    except NodeFailed as failure:
        is_named = dict(sequence.headers).get(REQUEST_ID) != call.id
        if sequence.ends and not is_named and failure.cause is not Cause.outcome_unknown:
            keeping = {name: node for name, node in nodes.items() if node.is_stateful}
            if not answered.isdisjoint(keeping):
                await _end_at([node for name, node in keeping.items() if name not in answered], serving, call, sequence)
        raise


async def _end_at(nodes: Sequence[RunnableNode], serving: Serving, call: Call, sequence: SequenceRequest) -> None:
    for node in nodes:
        closing = call.within(b"", None, "workflow", sequence.headers)
        closing.sequence, closing.protocol = sequence, SAGEMAKER_CLOSE  # only a step ends what is stored
        with suppress(NodeFailed):
            await _try_once(node, serving, closing)


async def execute(
    dag: Dag, nodes: Mapping[str, RunnableNode], serving: Serving, call: Call, answered: set[str] | None = None
) -> AsyncGenerator[Part]:
    """Send a call through the graph and yield the parts of the workflow's answer.

    The answer of the workflow is the answer of its only leaf. With several leaves it is a JSON object with their
    answers, each of which must be a JSON object, too. Nodes but such a leaf are added to ``answered`` once they have
    given their answer. Raises NodeFailed: a node gave no usable answer.
    """
    streams = dag.leaves if len(dag.leaves) == 1 else ()
    tasks: dict[str, asyncio.Task[bytes]] = {}
    failure: BaseException | None = None
    try:
        async with TaskGroup() as group:
            for name, parents in dag.parents.items():
                if name not in streams:
                    above = {parent: tasks[parent] for parent in parents}
                    tasks[name] = group.create_task(_run_node(nodes[name], serving, call, above))
                    if answered is not None:
                        tasks[name].add_done_callback(partial(_note_answer, answered, name))
    except ExceptionGroup as failures:  # others follow from the first, or came before their tasks were cancelled
        failure = failures.exceptions[0]
    if failure is not None:
        try:
            raise failure
        finally:
            del failure, tasks  # their tracebacks hold this frame
    answers = {name: task.result() for name, task in tasks.items()}
    if not streams:
        yield _whole(_joined(nodes, {leaf: answers[leaf] for leaf in dag.leaves}))
        return
    (leaf,) = streams
    inputs = {parent: answers[parent] for parent in dag.parents[leaf]}
    async with aclosing(_stream(nodes[leaf], serving, _input_of(nodes[leaf], inputs, call))) as parts:
        async for part in parts:
            yield part


def _note_answer(answered: set[str], name: str, task: asyncio.Task[bytes]) -> None:
    if not task.cancelled() and task.exception() is None:
        answered.add(name)


async def _run_node(
    node: RunnableNode, serving: Serving, call: Call, parents: Mapping[str, asyncio.Task[bytes]]
) -> bytes:
    own_input = _input_of(node, {name: await task for name, task in parents.items()}, call)
    for _ in range(node.node.settings.attempts - 1):
        try:
            return await _try_once(node, serving, own_input)
        except NodeFailed as failure:
            if not _may_try_again(failure):
                raise
    return await _try_once(node, serving, own_input)


def _may_try_again(failure: NodeFailed) -> bool:
    return failure.refusal is None and failure.cause not in _OVER


def _input_of(node: RunnableNode, answers: Mapping[str, bytes], call: Call) -> Call:
    """Return a node's input: the request for the start node, else the answers of its parents.

    The answer of an only parent is the body; the answers of several are under their names.
    """
    if not answers:
        return call
    (body, *others) = answers.values()
    values = [(name, None, answer) for name, answer in answers.items()] if others else body
    if call.sequence is None or not node.is_stateful:
        within = call.within(values, None, "workflow")
    else:
        # What its parents answer may differ when the client repeats the request, which is the same step all the same.
        headers = (*call.sequence.headers, (REQUEST_DIGEST, _digest_of(call)))
        within = call.within(values, None, "workflow", headers)
        within.sequence = call.sequence
    if isinstance(call, WorkflowCall):
        within.answer_in = seconds_left(call.request)
    return within


def _digest_of(call: Call) -> str:
    """Return the digest of the client's request, as the worker of a start node with sequences reads it."""
    row = InferRow(call.id, call.headers, call.content_type, call.body, call.protocol, False)
    return digest_of_values(row, RequestProcessor(None, call.headers), _FORMS).hex()


async def _try_once(node: RunnableNode, serving: Serving, given: Call) -> bytes:
    try:
        return await running_time().within(_limit(node), _whole_answer(_parts(node, serving, given)))
    except TimeoutError as error:
        raise _late(node) from error


async def _whole_answer(answer: AsyncGenerator[Part]) -> bytes:
    async with aclosing(answer) as parts:
        return b"".join([part.body async for part in parts])


async def _stream(node: RunnableNode, serving: Serving, given: Call) -> AsyncGenerator[Part]:
    """Yield the parts of the workflow's answer; until the first one, the node is tried as often as it may be."""
    tries = node.node.settings.attempts
    while True:
        async with aclosing(_parts(node, serving, given)) as parts:
            tries -= 1
            try:
                first = await running_time().within(_limit(node), _first(parts))
            except (NodeFailed, TimeoutError) as error:
                if tries and (isinstance(error, TimeoutError) or _may_try_again(error)):
                    continue
                raise error if isinstance(error, NodeFailed) else _late(node) from error
            headers = [[name, value] for name, value in first.headers if name.lower() in _PASSED_ON]
            yield first._replace(headers=headers) if first.more else _whole(first.body, headers)
            if first.more:
                async for part in parts:
                    yield part
            return


async def _first(parts: AsyncGenerator[Part]) -> Part:
    return await anext(parts)


async def _parts(node: RunnableNode, serving: Serving, given: Call) -> AsyncGenerator[Part]:
    """Yield the parts of one try. Raises NodeFailed: one of them says that it failed, or there is none."""
    call = given.again(via="workflow")
    if not node.is_stateful:
        call.sequence = None
    try:
        serving.submit(serving.get(node.model_name, node.model_version), call)
        more = True
        while more:
            part = await call.next()
            if part.error is not None:
                is_clients = is_clients_mistake(part.status) and isinstance(given, WorkflowCall)
                raise NodeFailed(node.node.name, node.model_name, part.error, None, part if is_clients else None)
            if part.status >= 400:
                text = bytes(part.body[:200]).decode("utf-8", "replace")
                raise _failed(node, f"its handler answered with status {part.status} {text}".rstrip())
            more = part.more
            yield part
    except JobFailed as error:
        why = "" if call.exceeded is None else call.exceeded.message
        retry_after = 1 if call.exceeded is None else call.exceeded.retry_after
        raise NodeFailed(node.node.name, node.model_name, why, error.cause, retry_after=retry_after) from error
    except (ModelNotFound, ModelVersionNotFound) as error:
        raise _failed(node, str(error), Cause.unregistered) from error
    finally:
        call.cancel()  # without effect on a job that has ended


def _whole(body: bytes | bytearray, headers: Sequence[Sequence[str]] = ()) -> Part:
    """Return a whole answer, which is labelled as JSON, as in TorchServe, with further headers of its node."""
    others = [list(pair) for pair in headers if pair[0].lower() != "content-type"]
    return Part("", False, 200, "", [["content-type", JSON], *others], body, None)


def _limit(node: RunnableNode) -> float:
    return node.node.settings.timeout_ms / 1000


def _late(node: RunnableNode) -> NodeFailed:
    """Return the failure for an answer that takes too long, while the worker may be about to count the step."""
    cause = Cause.outcome_unknown if node.is_stateful else None
    return _failed(node, f"no answer within {node.node.settings.timeout_ms} ms", cause)


def _joined(nodes: Mapping[str, RunnableNode], answers: Mapping[str, bytes]) -> bytes:
    """Return a JSON object with the answers of several leaves, whose text stays unchanged."""
    members = []
    for leaf, answer in answers.items():
        try:
            check_object(answer)
        except UnreadableJson as error:
            problem = "its answer is no JSON object, which it must be where a workflow ends in several nodes"
            raise _failed(nodes[leaf], problem) from error
        members.append(json.dumps(leaf).encode() + b": " + answer)
    return b"{" + b", ".join(members) + b"}"


def _failed(node: RunnableNode, reason: str, cause: Cause | None = None) -> NodeFailed:
    return NodeFailed(node.node.name, node.model_name, reason, cause)
