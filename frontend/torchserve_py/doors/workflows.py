"""The workflow doors: register, describe, list and unregister on the management side, ``/wfpredict`` for inference.

As in TorchServe, ``enable_model_api`` does not gate these calls. While it is off nothing is downloaded for them, so
that they reach only archives that the operator has put into the server's stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from torchserve_py.doors.failures import Failure, bad_request, failure_of, failure_of_job
from torchserve_py.doors.management_calls import page_of
from torchserve_py.doors.management_door import PAGE
from torchserve_py.doors.openapi import BINARY, JSON, OBJECT, Operation, Parameter, document
from torchserve_py.doors.parameters import of_query, of_query_or_json
from torchserve_py.doors.pipeline import Exchange, HttpExchange
from torchserve_py.doors.requests import content_type_of
from torchserve_py.doors.responses import Responses, Sent
from torchserve_py.doors.routing import AfterBody, DoorContext, PathValues, Reply, Route
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.doors.torchserve_dialect import TorchServeDialect
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.request import Request
from torchserve_py.workflows.execution import WorkflowParts
from torchserve_py.workflows.registry import Workflow, WorkflowRequest

_LIST: Final = Operation("listWorkflows", "List the workflows", (200, 400, 500), PAGE, gives={JSON: OBJECT})
_REGISTER: Final = Operation(
    "registerWorkflow",
    "Register a workflow and its models",
    (200, 400, 404, 405, 409, 500, 503),
    (
        Parameter("url", "Archive in the workflow store, or URL", required=True, least=1),
        Parameter("workflow_name", "Name to register it under; otherwise the archive's"),
        Parameter("response_timeout", "Seconds that an inference of a model may take", "integer", 120),
        Parameter("startup_timeout", "Seconds that loading a model may take", "integer", 120),
        Parameter("s3_sse_kms", "Not supported: a presigned URL needs none", "boolean", choices=(False,)),
    ),
)
_DESCRIBE: Final = Operation(
    "describeWorkflow", "Describe a workflow", (200, 404, 500), gives={JSON: {"type": "array", "items": OBJECT}}
)
_UNREGISTER: Final = Operation("unregisterWorkflow", "Unregister a workflow and its models", (200, 404, 500))
_PREDICT: Final = Operation(
    "workflow_predictions",
    "Predict with a workflow",
    (200, 400, 404, 500, 503),
    takes=BINARY,
    gives={JSON: {}},
    method="POST",
)


class _WorkflowDoor:
    def __init__(self, context: DoorContext) -> None:
        self._workflows = context.workflows
        self._responses = context.responses
        self._max_body = context.settings.max_request_size


class WorkflowManagementDoor(_WorkflowDoor):
    """Turns HTTP requests into calls of the workflow registry."""

    @property
    def routes(self) -> Sequence[Route]:
        token, one = TokenType.management, "/workflows/{workflow_name}"
        return [
            Route("/workflows", self._list, ("GET",), token, operations=(_LIST,)),
            Route("/workflows", self._register, ("POST",), token, operations=(_REGISTER,)),
            Route(one, self._describe, ("GET",), token, operations=(_DESCRIBE,)),
            Route(one, self._unregister, ("DELETE",), token, operations=(_UNREGISTER,)),
        ]

    def _list(self, request: Request, values: PathValues) -> Sent:
        parameters = of_query(request, _LIST)
        entries = [{"workflowName": each.name, "workflowUrl": each.url} for each in self._workflows.workflows()]
        page = page_of("workflows", entries, parameters.integer("limit"), parameters.count("next_page_token", 0))
        return self._responses.send_json(request, 200, page)

    async def _register(self, request: Request, values: PathValues) -> Sent:
        parameters = await of_query_or_json(request, self._max_body, _REGISTER)
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
        return self._done(request, f"Workflow {workflow.name} has been registered and scaled successfully.")

    def _describe(self, request: Request, values: PathValues) -> Sent:
        described = [_describe(self._workflows.get(values["workflow_name"]))]
        return self._responses.send_json(request, 200, described)

    async def _unregister(self, request: Request, values: PathValues) -> Sent:
        name = values["workflow_name"]
        await self._workflows.unregister(name)
        return self._done(request, f'Workflow "{name}" unregistered')

    def _done(self, request: Request, text: str) -> Sent:
        return self._responses.send_json(request, 200, {"status": text})


class WorkflowInferenceDoor(_WorkflowDoor):
    """Sends requests through workflows."""

    @property
    def routes(self) -> Sequence[Route]:
        return [Route("/wfpredict/{workflow_name}", self._predict, operations=(_PREDICT,))]

    def _predict(self, request: Request, values: PathValues) -> Reply:
        """Send a request through a workflow, or describe how to; the query is ignored."""
        workflow = self._workflows.get(values["workflow_name"])
        if request.method == "OPTIONS":
            path, operation = f"/wfpredict/{quote(workflow.name, safe='')}", _PREDICT._replace(id=workflow.name)
            described = document(f"RESTful API for: {workflow.name}", [(path, "POST", operation)], version="1.0.0")
            return self._responses.send_json(request, 200, described)
        content_type = content_type_of(request)

        def submit(body: bytes) -> WorkflowExchange:
            inference = InferenceRequest(request.raw_headers, body, content_type)
            parts = self._workflows.submit(workflow, inference)
            return WorkflowExchange(self._responses, request, workflow.name, inference, parts)

        return AfterBody(self._max_body, submit)


class WorkflowDialect(TorchServeDialect):
    """Failures have TorchServe's status and text, and the cause that the node's model would have given."""

    def ended(self, exchange: Exchange, cause: Cause) -> Failure:
        assert isinstance(exchange.parts, WorkflowParts)
        error = exchange.parts.failure
        assert error is not None
        of_job = failure_of_job(cause, error.model_name, None)
        message = f"Error executing {error.node}: {of_job.message}"
        return failure_of(error)._replace(message=message, cause=of_job.cause, overloaded=of_job.overloaded)


_DIALECT: Final = WorkflowDialect()


class WorkflowExchange(HttpExchange):
    """An exchange whose answer comes from several models."""

    def __init__(
        self, responses: Responses, request: Request, name: str, inference: InferenceRequest, parts: WorkflowParts
    ) -> None:
        super(HttpExchange, self).__init__(_DIALECT, None, name, inference, parts)
        self._responses, self.request = responses, request
        request.log_fields = {"request_id": parts.job_id, "sequence_id": parts.sequence_id}


def _describe(workflow: Workflow) -> dict[str, Any]:
    """Describe a workflow: the defaults of its models, and its graph in TorchServe's notation."""
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
