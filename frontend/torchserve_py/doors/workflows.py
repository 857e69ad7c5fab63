"""The workflow doors: register, describe, list and unregister on the management side, ``/wfpredict`` for inference.

As in TorchServe, ``enable_model_api`` does not gate these calls. While it is off nothing is downloaded for them, so
that they reach only archives that the operator has put into the server's stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchserve_py.doors.errors import (
    DoorError,
    Failure,
    bad_request,
    check_method,
    failure_of,
    failure_of_job,
    method_not_allowed,
    not_found,
)
from torchserve_py.doors.management_calls import page_of
from torchserve_py.doors.parameters import of_query, of_query_or_json
from torchserve_py.doors.requests import read_body
from torchserve_py.doors.responses import JSON_TYPE, Responses, Sent
from torchserve_py.doors.routing import Path, Route, Routes
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.transport.http1.request import Request
from torchserve_py.workflows.errors import NodeFailed
from torchserve_py.workflows.registry import Workflow, WorkflowRequest

if TYPE_CHECKING:
    from torchserve_py.settings.table import Settings
    from torchserve_py.workflows.registry import WorkflowRegistry


class _WorkflowDoor:
    def __init__(self, settings: Settings, workflows: WorkflowRegistry, responses: Responses) -> None:
        self._workflows = workflows
        self._responses = responses
        self._max_body = settings.max_request_size


class WorkflowManagementDoor(_WorkflowDoor):
    """Turns HTTP requests into calls of the workflow registry."""

    @property
    def routes(self) -> Routes:
        """First path segment to route."""
        return {"workflows": Route(self.workflows, TokenType.management)}

    async def workflows(self, request: Request, path: Path) -> Sent:
        """Everything under ``/workflows``."""
        match path[1:], request.method:
            case (), "GET":
                return await self._list(request)
            case (), "POST":
                return await self._register(request)
            case (name,), "GET":
                description = [_describe(self._workflows.get(name))]
                return self._responses.send_json(request, 200, description)
            case (name,), "DELETE":
                await self._workflows.unregister(name)
                return await self._done(request, f'Workflow "{name}" unregistered')
        if len(path) > 2:
            raise not_found()
        raise method_not_allowed("GET, POST" if len(path) == 1 else "GET, DELETE")

    async def _list(self, request: Request) -> Sent:
        """``GET /workflows?limit=&next_page_token=``."""
        parameters = of_query(request)
        entries = [{"workflowName": each.name, "workflowUrl": each.url} for each in self._workflows.workflows()]
        page = page_of("workflows", entries, parameters.integer("limit"), parameters.count("next_page_token", 0))
        return self._responses.send_json(request, 200, page)

    async def _register(self, request: Request) -> Sent:
        """``POST /workflows?url=…``."""
        parameters = await of_query_or_json(request, self._max_body)
        url = parameters.text("url")
        if not url:
            raise bad_request("Parameter url is required.")
        workflow = await self._workflows.register(
            WorkflowRequest(
                url=url,
                name=parameters.text("workflow_name"),
                response_timeout=parameters.integer("response_timeout"),
                startup_timeout=parameters.integer("startup_timeout"),
                s3_sse_kms=parameters.boolean("s3_sse_kms", default=False),
            )
        )
        return await self._done(request, f"Workflow {workflow.name} has been registered and scaled successfully.")

    async def _done(self, request: Request, text: str) -> Sent:
        return self._responses.send_json(request, 200, {"status": text})


class WorkflowInferenceDoor(_WorkflowDoor):
    """Sends requests through workflows."""

    @property
    def routes(self) -> Routes:
        """First path segment to route."""
        return {"wfpredict": Route(self.predict, TokenType.inference)}

    async def predict(self, request: Request, path: Path) -> Sent:
        """``/wfpredict/{workflow}``, any method but OPTIONS, which asks what there is; the query is ignored."""
        if len(path) != 2:
            raise not_found()
        check_method(request.method)
        if request.method == "OPTIONS":
            raise method_not_allowed("GET, HEAD, POST, PUT, PATCH, DELETE")
        name = path[1]
        self._workflows.get(name)  # before the body is read
        content_type = request.headers.get("Content-Type", "")
        if not content_type.isascii():
            raise bad_request(f"Header Content-Type: {content_type!a} holds characters outside of ASCII.")
        body = await read_body(request, self._max_body)
        try:
            answer = await self._workflows.run(name, InferenceRequest(request.raw_headers, body, content_type))
        except NodeFailed as error:
            raise DoorError(_failure_of_node(error)) from error
        return self._responses.send(request, 200, answer, (JSON_TYPE,))


def _failure_of_node(error: NodeFailed) -> Failure:
    """TorchServe's status and text, the reason behind it, and the cause that the node's model would have told."""
    failure = failure_of(error)
    if error.cause is None:
        return failure
    of_job = failure_of_job(error.cause, error.model_name, None)
    message = f"Error executing {error.node}: {of_job.message}"
    return failure._replace(message=message, cause=of_job.cause, overloaded=of_job.overloaded)


def _describe(workflow: Workflow) -> dict[str, Any]:
    """A workflow with the defaults of its models, and its graph in TorchServe's notation."""
    spec = workflow.files.spec
    edges = ", ".join(f"{node}=[{', '.join(children)}]" for node, children in spec.dag.edges.items())
    return {
        "workflowName": workflow.name,
        "workflowUrl": workflow.url,
        "minWorkers": spec.defaults.min_workers,
        "maxWorkers": spec.defaults.max_workers,
        "batchSize": spec.defaults.batch_size,
        "maxBatchDelay": spec.defaults.max_batch_delay_ms,
        "workflowDag": f"{{{edges}}}",
    }
