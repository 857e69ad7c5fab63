"""The workflow endpoints: register, describe, list and unregister on the management side, ``/wfpredict`` for inference.

As in TorchServe, ``enable_model_api`` does not gate these calls. While it is off nothing is downloaded for them, so
that they reach only archives that the operator has put into the server's stores.
"""

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

from torchserve_py.apis.workflows.execution import WorkflowCall
from torchserve_py.apis.workflows.registry import Workflow, WorkflowRegistry
from torchserve_py.base.causes import Cause
from torchserve_py.base.url_secrets import without_secrets
from torchserve_py.core.serving.errors import ModelNotFound, ModelVersionNotFound
from torchserve_py.core.serving.serving import RegisterRequest
from torchserve_py.endpoints.client_call import ClientCall, HttpCall, TorchServeDialect
from torchserve_py.endpoints.content_encodings import CONTENT_ENCODING, undo_encoding
from torchserve_py.endpoints.failures import Failure, bad_request, failure_of, failure_of_job
from torchserve_py.endpoints.management.management_calls import page_of
from torchserve_py.endpoints.management.management_endpoints import PAGE
from torchserve_py.endpoints.management.parameters import of_query, of_query_or_json
from torchserve_py.endpoints.openapi import BINARY, OBJECT, Operation, Parameter, document
from torchserve_py.endpoints.predictions import takes_encoded
from torchserve_py.endpoints.requests import content_type_of
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import EndpointContext, Endpoints, PathValues, Reply, Route
from torchserve_py.endpoints.sequences import SequenceHeaders
from torchserve_py.endpoints.time_limits import DEADLINE, PERIOD, URGENCY_KEYS, read_urgency
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http1.request import Request
from ts.protocol.media_types import JSON

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
    (200, 400, 404, 408, 409, 410, 500, 503),
    takes=BINARY,
    gives={JSON: {}},
    method="POST",
)


def workflows_of(context: EndpointContext) -> WorkflowRegistry:
    """Return the registry of a server's workflows, which is drained before the models: a node is a request to one."""
    registry = WorkflowRegistry(context.settings, context.serving)
    context.work.append(registry)
    return registry


class WorkflowManagementEndpoints(Endpoints):
    """Turns HTTP requests into calls of the workflow registry."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._workflows = context.shared(workflows_of)

    def routes(self) -> Iterator[Route]:
        token, one = TokenType.management, "/workflows/{workflow_name}"
        yield Route("/workflows", self._list, ("GET",), token, operations=(_LIST,))
        yield Route("/workflows", self._register, ("POST",), token, operations=(_REGISTER,))
        yield Route(one, self._describe, ("GET",), token, operations=(_DESCRIBE,))
        yield Route(one, self._unregister, ("DELETE",), token, operations=(_UNREGISTER,))

    def _list(self, request: Request, values: PathValues) -> Answer:
        workflows = self._workflows.workflows()
        entries = [{"workflowName": each.name, "workflowUrl": without_secrets(each.url)} for each in workflows]
        return json_answer(page_of("workflows", entries, of_query(request, _LIST)))

    async def _register(self, request: Request, values: PathValues) -> Answer:
        given = await of_query_or_json(request, self.max_body, _REGISTER)
        if not given.get("url"):
            raise bad_request("Parameter url is required.")
        wanted = RegisterRequest(model_name=given.pop("workflow_name", None), **given)
        workflow = await self._workflows.register(wanted)
        return json_answer({"status": f"Workflow {workflow.name} has been registered and scaled successfully."})

    def _describe(self, request: Request, values: PathValues) -> Answer:
        return json_answer([_describe(self._workflows.get(values["workflow_name"]))])

    async def _unregister(self, request: Request, values: PathValues) -> Answer:
        name = values["workflow_name"]
        await self._workflows.unregister(name)
        return json_answer({"status": f'Workflow "{name}" unregistered'})


class WorkflowInferenceEndpoints(Endpoints):
    """Sends requests through workflows."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._workflows = context.shared(workflows_of)
        self._sequences = SequenceHeaders(context.settings)
        self._dialect = WorkflowDialect(self._sequences.id_name)

    def routes(self) -> Iterator[Route]:
        yield Route("/wfpredict/{workflow_name}", self._predict, operations=(_PREDICT,), passes_encoding_on=True)

    def _predict(self, request: Request, values: PathValues) -> Reply:
        """Send a request through a workflow, or describe how to; the query is ignored."""
        self._workflows.check_awaited(values["workflow_name"])
        workflow = self._workflows.get(values["workflow_name"])
        if request.method == "OPTIONS":
            path, operation = f"/wfpredict/{quote(workflow.name, safe='')}", _PREDICT._replace(id=workflow.name)
            return json_answer(
                document(f"RESTful API for: {workflow.name}", [(path, "POST", operation)], version="1.0.0")
            )
        account = self.context.account(request, workflow.name)
        content_type = content_type_of(request)

        def submit(body: bytes) -> HttpCall:
            call = WorkflowCall(request, self.context.responses, self._dialect, workflow.name, body, content_type)
            call.account = account
            if workflow.is_stateful:
                call.in_sequence(self._sequences.of(request.headers))
            if not URGENCY_KEYS.isdisjoint(request.headers.raw):
                read_urgency(call)
            if call.timing is not None:
                raise bad_request(f"Header {DEADLINE} or {PERIOD}: a workflow keeps none; X-Request-Timeout-Ms does.")
            self._workflows.submit(workflow, call)
            return call

        async def decoded(body: bytes) -> HttpCall:
            return submit(await undo_encoding(request, body, self.max_body))

        is_encoded = CONTENT_ENCODING in request.headers.raw
        return decoded if is_encoded and not self._takes_encoded(workflow) else submit

    def _takes_encoded(self, workflow: Workflow) -> bool:
        """Return whether the start node gets bodies as they were sent."""
        start = workflow.nodes[next(iter(workflow.files.spec.dag.parents))]
        try:
            return takes_encoded(self.serving, self.serving.get(start.model_name, start.model_version))
        except (ModelNotFound, ModelVersionNotFound):
            return True  # the workflow says that it is gone


class WorkflowDialect(TorchServeDialect):
    """Failures have TorchServe's status and text, and the cause that the node's model would have given.

    A step of a sequence is refused as by the model, since its client has to know what to do next.
    """

    def ended(self, call: ClientCall, cause: Cause) -> Failure:
        assert isinstance(call, WorkflowCall)
        error = call.failure
        assert error is not None
        of_job = failure_of_job(cause, error.model_name, None, call.sequence_id)
        message = f"{error.message}: {error.detail or of_job.message}"
        if call.sequence is None:
            return failure_of(error)._replace(message=message, cause=of_job.cause, overloaded=of_job.overloaded)
        told = (call.request_id_header,) if cause is Cause.outcome_unknown else ()
        return of_job._replace(message=message, retry_after=error.retry_after, more_headers=told)


def _describe(workflow: Workflow) -> dict[str, Any]:
    """Describe a workflow: the defaults of its models, and its graph in TorchServe's notation."""
    spec = workflow.files.spec
    edges = ", ".join(f"{node}=[{', '.join(children)}]" for node, children in spec.dag.edges.items())
    return {
        "workflowName": workflow.name,
        "workflowUrl": without_secrets(workflow.url),
        "minWorkers": spec.defaults.min_workers,
        "maxWorkers": spec.defaults.max_workers,
        "batchSize": spec.defaults.batch_size,
        "maxBatchDelay": spec.defaults.max_batch_delay_ms,
        "workflowDag": f"{{{edges}}}",
    }
