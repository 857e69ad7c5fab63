"""The registered workflows, and the interface through which endpoints use them."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from torchserve_py.apis.workflows import startup_workflows
from torchserve_py.apis.workflows.archive import WorkflowFiles, obtain
from torchserve_py.apis.workflows.errors import (
    DownloadsDisabled,
    NodeFailed,
    RegistrationFailed,
    WorkflowConflict,
    WorkflowError,
    WorkflowNotFound,
)
from torchserve_py.apis.workflows.execution import RunnableNode, WorkflowCall, execute, execute_step
from torchserve_py.apis.workflows.spec import Node
from torchserve_py.apis.workflows.startup_workflows import Workers
from torchserve_py.apis.workflows.workflow_settings import WorkflowSettings
from torchserve_py.base.causes import Cause
from torchserve_py.base.settings.model_spec import ModelSpec, is_url
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.archive.cancellation import run_in_daemon_thread
from torchserve_py.core.archive.downloads import DownloadPolicy
from torchserve_py.core.archive.errors import ArchiveError, ArchiveExists
from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.plans.plan import check_names
from torchserve_py.core.plans.precedence import check_numbers
from torchserve_py.core.serving.changes import Changes
from torchserve_py.core.serving.errors import (
    ModelError,
    ModelNotFound,
    ModelVersionNotFound,
    ShuttingDown,
    WorkersFailed,
)
from torchserve_py.core.serving.serving import AwaitedWorkflow, RegisterRequest, Serving
from torchserve_py.endpoints.failures import UNAVAILABLE, EndpointError, Failure
from torchserve_py.endpoints.time_limits import seconds_left

logger = logging.getLogger(__name__)

#: How long cancelled registrations may clean up when the server stops (seconds).
_CLOSE_LIMIT = 5.0
#: Seconds until a workflow that could not be registered at the start is tried again.
_AGAIN = 60.0


@dataclass(frozen=True, eq=False)
class Workflow:
    """A registered workflow.

    Attributes:
        nodes: Those of its specification, with the models that run them.
        first_workers: What nodes had when they were registered as their files say.
        is_stateful: Whether a node keeps sequences.
    """

    name: str
    request: RegisterRequest
    files: WorkflowFiles
    nodes: Mapping[str, RunnableNode]
    first_workers: Mapping[str, Workers]
    is_stateful: bool = False

    @property
    def url(self) -> str:
        """What it was registered with."""
        return self.request.url

    @property
    def spec(self) -> ModelSpec:
        """Its archive for a later start, and its name unless that is the archive's."""
        archive = self.url if self.files.downloaded is None else self.files.downloaded.name
        return ModelSpec(None if self.name == self.files.name else self.name, archive)


class WorkflowRegistry:
    """All registered workflows, whose nodes are models called ``{workflow}__{node}``."""

    def __init__(self, settings: Settings, serving: Serving) -> None:
        self._settings = settings
        self._serving = serving
        self._workflows: dict[str, Workflow] = {}
        self._coming: set[str] = set()
        #: Those that are being unregistered: their models answer accepted requests.
        self._ending: set[Workflow] = set()
        #: What of ``load_workflows`` is not registered yet.
        self._waiting = list(settings.of(WorkflowSettings).load_workflows)
        #: Why an archive of ``load_workflows`` is not registered, by the archive.
        self.failures: dict[str, str] = {}
        self._show_waiting()
        self._changes = Changes()
        #: The calls that run, and what they go through.
        self._running: dict[asyncio.Task[None], Workflow] = {}
        #: By workflow and id, what the requests of a sequence take in turn.
        self._turns = WeakValueDictionary[tuple[Workflow, str], _Turn]()
        self._draining = False

    def get(self, name: str) -> Workflow:
        """Return a workflow. Raises WorkflowNotFound: no such name."""
        workflow = self._workflows.get(name)
        if workflow is None:
            ends = any(each.name == name for each in self._ending)
            why = "it is being unregistered: its models answer their accepted requests" if ends else ""
            raise WorkflowNotFound(f"Workflow not found: {name}", why)
        return workflow

    def workflows(self) -> list[Workflow]:
        """Return all workflows, sorted by name."""
        return [workflow for _, workflow in sorted(self._workflows.items())]

    def check_awaited(self, name: str | None) -> None:
        """Raise EndpointError if a workflow that is not registered is one of ``load_workflows``: it may come soon."""
        if name not in self._workflows and any(name == startup_workflows.name_of(text) for text in self._waiting):
            message = f'Workflow "{name}" is not registered yet.'
            raise EndpointError(Failure(503, UNAVAILABLE, message, Cause.not_loaded.value, overloaded=True))

    @property
    def node_models(self) -> set[str]:
        """The names of the models that are nodes."""
        return {node.model_name for workflow in self._workflows.values() for node in workflow.nodes.values()}

    def submit(self, workflow: Workflow, call: WorkflowCall) -> None:
        """Send a call through a workflow.

        Raises ShuttingDown: the server takes no new work.
        """
        if self._draining:
            raise ShuttingDown
        dag, nodes, sequence = workflow.files.spec.dag, workflow.nodes, call.sequence
        if sequence is None:
            call.run(execute(dag, nodes, self._serving, call))
        else:
            turn = self._turns.setdefault((workflow, sequence.id), _Turn())
            first = nodes[next(iter(dag.parents))]
            call.run(_in_turn(turn, call, first, execute_step(dag, nodes, self._serving, call, sequence)))
        self._running[call.task] = workflow
        call.task.add_done_callback(self._running.pop)

    async def register(self, request: RegisterRequest, workers: Mapping[str, Workers] | None = None) -> Workflow:
        """Register a workflow and start the workers of all its nodes; continue even if the caller is cancelled.

        The request's `model_name` is the name of the workflow; its timeouts count for every model of the workflow.
        ``workers`` has those of nodes that do not have as many as the specification says.

        Raises WorkflowError: the workflow cannot be served, and all that was done for it is undone; ModelError: its
        name or a timeout is wrong; ArchiveError: the archive could not be downloaded; ShuttingDown: the server takes no
        new work.
        """
        if self._draining:
            raise ShuttingDown
        return await self._changes.complete(self._register(request, workers or {}))

    async def register_at_start(self) -> None:
        """Register those of ``load_workflows``; try again, each minute, what fails."""
        while self._waiting and not self._draining:
            for text in list(self._waiting):
                if text not in self._waiting:  # somebody has registered it meanwhile
                    continue
                try:
                    await self.register(*startup_workflows.read(text))
                except (WorkflowError, ArchiveError, ModelError) as error:
                    self.failures[text] = str(error)
                    self._show_waiting()
                    logger.error("Workflow %s is not registered, and tried again in a minute: %s", text, error)
            if self._waiting:
                await asyncio.sleep(_AGAIN)

    @property
    def saved(self) -> tuple[str, ...]:
        """The value of ``load_workflows`` with which a later server has the same workflows."""
        served = [startup_workflows.written(each.spec, each.request, self._scaled(each)) for each in self.workflows()]
        return (*served, *(text for text in self._waiting if text not in served))

    async def unregister(self, name: str) -> None:
        """Stop serving a workflow: wait for its accepted requests, unregister its models, and remove its files.

        Raises WorkflowNotFound: no such name; ModelError: a model of the workflow could not be unregistered, although
        the workflow is unregistered all the same.
        """
        workflow = self.get(name)
        del self._workflows[name]
        self._changed()
        await self._changes.complete(self._remove(workflow))

    async def drain(self, limit: float) -> bool:
        """Refuse new requests and wait for running ones, at most ``limit`` seconds; return whether all have ended."""
        self._draining = True
        if self._running:
            await asyncio.wait(self._running, timeout=limit)
        return not self._running

    async def close(self) -> None:
        """Cancel registrations and remove all files. The registry of models ends the models and their requests."""
        self._draining = True
        self._changes.cancel()
        await self._changes.wait(_CLOSE_LIMIT)
        for workflow in self._workflows.values():
            workflow.files.remove()

    # Changes

    def _workers(self, node: RunnableNode) -> Workers | None:
        """Return the workers of a node, None if its model is served no more."""
        try:
            status = self._serving.status(self._serving.get(node.model_name, node.model_version))
        except (ModelNotFound, ModelVersionNotFound):
            return None
        return Workers(status.min_workers, status.max_workers)

    def _scaled(self, workflow: Workflow) -> dict[str, Workers]:
        """Return the workers of those nodes that somebody has scaled."""
        return {
            name: workers
            for name, node in workflow.nodes.items()
            if (workers := self._workers(node)) is not None and workers != workflow.first_workers.get(name)
        }

    async def _register(self, request: RegisterRequest, workers: Mapping[str, Workers]) -> Workflow:
        check_numbers(request)
        settings = self._settings
        if is_url(request.url):
            self._check_downloads(request.url)
        try:
            files = await run_in_daemon_thread(
                lambda: obtain(
                    request.url,
                    workflow_store=settings.of(WorkflowSettings).workflow_store or settings.model_store,
                    temp_dir=settings.temp_dir,
                    policy=DownloadPolicy(settings.allowed_urls, settings.allowed_url_networks),
                ),
                lambda files: files.remove(downloaded=True),
            )
        except ArchiveExists as error:
            for each in self._ending:
                if each.files.downloaded == error.file:
                    why = f"workflow {each.name}, which was registered with it, is being unregistered"
                    raise WorkflowConflict(str(error), why) from error
            raise
        name = request.model_name or files.name
        try:
            with self._reserved(name):
                workflow = Workflow(name, request, files, {}, {})
                check_names(name, "", of="workflow")
                startup_workflows.check(workflow.spec)
                nodes = await self._register_nodes(name, files, request, workers)
                first = {
                    each: counts
                    for each, node in nodes.items()
                    if each not in workers and (counts := self._workers(node)) is not None
                }
                is_stateful = any(node.is_stateful for node in nodes.values())
                workflow = replace(workflow, nodes=nodes, first_workers=first, is_stateful=is_stateful)
                self._workflows[name] = workflow
        except BaseException:
            await asyncio.shield(asyncio.to_thread(files.remove, downloaded=True))
            raise
        logger.info("Workflow %s is registered", name)
        self._waiting = [text for text in self._waiting if not startup_workflows.means(text, name, request)]
        self._show_waiting()
        self._changed()
        return workflow

    def _show_waiting(self) -> None:
        """Tell what of ``load_workflows`` is not registered yet, for `/ready`."""
        self.failures = {text: why for text, why in self.failures.items() if text in self._waiting}
        self._serving.awaited_workflows = [
            AwaitedWorkflow(startup_workflows.name_of(text), text in self.failures) for text in self._waiting
        ]

    def _changed(self) -> None:
        for each in self._serving.on_change:
            each()

    @contextlib.contextmanager
    def _reserved(self, name: str) -> Iterator[None]:
        """Keep a name from being registered twice at the same time."""
        if name in self._workflows or name in self._coming:
            raise WorkflowConflict(f"Workflow {name} is already registered.")
        self._coming.add(name)
        try:
            yield
        finally:
            self._coming.discard(name)

    async def _register_nodes(
        self, workflow: str, files: WorkflowFiles, request: RegisterRequest, workers: Mapping[str, Workers]
    ) -> dict[str, RunnableNode]:
        """Register every node as a model; after a failure unregister those that were registered."""
        nodes = files.spec.nodes.values()
        for name in workers.keys() - files.spec.nodes.keys():
            logger.warning(
                "Workflow %s has no node %s any more; its number of workers counts for nothing", workflow, name
            )
        for node in nodes:
            if node.url is not None and is_url(node.url):
                self._check_downloads(node.url)
        done: dict[str, RunnableNode] = {}

        async def register(node: Node) -> None:
            wanted = _model_of(node, workflow, files, request)
            if (counts := workers.get(node.name)) is not None:
                wanted = replace(wanted, initial_workers=counts.least, max_workers=counts.most)
            result = await self._serving.register(wanted)
            model = self._serving.get(result.model_name, result.model_version)
            own = result.model_name, result.model_version, model.is_stateful, model.config.job_queue_size
            done[node.name] = RunnableNode(node, *own)

        try:
            outcomes = await asyncio.gather(*map(register, nodes), return_exceptions=True)
            failures = [
                f"{node.name}: {_reason(error)}"
                for node, error in zip(nodes, outcomes, strict=True)
                if error is not None
            ]
            if failures:
                why = f"Failures: [{', '.join(failures)}]"
                raise RegistrationFailed(f"Workflow {workflow} has failed to register. {why}")
        except BaseException:
            await self._unregister_nodes(done)
            raise
        return done

    async def _remove(self, workflow: Workflow) -> None:
        self._ending.add(workflow)
        try:
            if running := [call for call, its in self._running.items() if its is workflow]:  # later nodes have to run
                await asyncio.wait(running, timeout=self._settings.unregister_model_timeout)
            failures = await self._unregister_nodes(workflow.nodes)
            await asyncio.to_thread(workflow.files.remove, downloaded=True)
        finally:
            self._ending.discard(workflow)
        logger.info("Workflow %s is unregistered", workflow.name)
        if failures:
            raise failures[0]

    async def _unregister_nodes(self, nodes: Mapping[str, RunnableNode]) -> list[ModelError]:
        """Unregister the models of nodes that are still registered; return the failures."""
        failures: list[ModelError] = []

        async def unregister(node: RunnableNode) -> None:
            try:
                await self._serving.unregister(node.model_name, node.model_version)
            except (ModelNotFound, ModelVersionNotFound):
                logger.info("Model %s had been unregistered before", node.model_name)
            except ModelError as error:
                logger.error("Model %s of a workflow could not be unregistered: %s", node.model_name, error)
                failures.append(error)

        await asyncio.gather(*map(unregister, nodes.values()))
        return failures

    def _check_downloads(self, url: str) -> None:
        if not self._settings.enable_model_api:
            raise DownloadsDisabled(
                f"{url} is not downloaded while enable_model_api is false; put the archive into the workflow store or"
                " the model store, and name it there"
            )


class _Turn(asyncio.Lock):
    """What the steps of a sequence take in turn, and how many of them are ``waiting`` for it."""

    waiting = 0


async def _in_turn(
    turn: _Turn, call: WorkflowCall, first: RunnableNode, answer: AsyncGenerator[Part]
) -> AsyncGenerator[Part]:
    """Yield the answer of a step once the steps before it have ended, so that all nodes get them in the same order.

    Raises NodeFailed: as the answer, or the client waits no longer for the ``first`` node, or as many steps wait as
    requests may wait for that.
    """
    if turn.waiting >= first.queue_size:
        why = f"{turn.waiting} steps of the sequence wait already (jobQueueSize)"
        raise NodeFailed(first.node.name, first.model_name, why, Cause.queue_full)
    turn.waiting += 1
    try:
        async with asyncio.timeout(call.answer_in):
            await turn.acquire()
    except TimeoutError as error:
        raise NodeFailed(first.node.name, first.model_name, "", Cause.client_timeout) from error
    finally:
        turn.waiting -= 1
    try:
        call.answer_in = seconds_left(call.request)
        async with aclosing(answer) as parts:
            async for part in parts:
                yield part
    finally:
        turn.release()


def _model_of(node: Node, workflow: str, files: WorkflowFiles, request: RegisterRequest) -> RegisterRequest:
    """Return the registration of a node. As in TorchServe, the maximum of workers is started."""
    settings = node.settings
    return replace(
        request,
        url=str(files.folder) if node.url is None else node.url,
        model_name=f"{workflow}__{node.name}",
        handler=f"{files.handler}:{node.name}" if node.url is None else None,
        batch_size=settings.batch_size,
        max_batch_delay=settings.max_batch_delay_ms,
        initial_workers=settings.max_workers,
        in_workflow=True,
        is_function=node.url is None,
    )


def _reason(error: BaseException) -> str:
    """Return why a node was not registered; TorchServe's message about workers is followed by the worker's own."""
    if not isinstance(error, (ArchiveError, ModelError)):
        logger.error("A node could not be registered", exc_info=error)
    return f"{error} ({error.__cause__})" if isinstance(error, WorkersFailed) else str(error)
