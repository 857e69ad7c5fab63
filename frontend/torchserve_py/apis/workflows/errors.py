"""Errors of workflows, each with TorchServe's status, type and message, as those of `archive.errors`."""

from torchserve_py.base.causes import Cause
from torchserve_py.core.archive.errors import StatusError
from torchserve_py.core.jobs.parts import Part


class WorkflowError(StatusError):
    """Base class."""

    status = 500
    error_type = "WorkflowException"


class WorkflowNotFound(WorkflowError):
    """No workflow of that name is registered, or there is no archive at the given location."""

    status = 404
    error_type = "WorkflowNotFoundException"


class WorkflowConflict(WorkflowError):
    """A workflow of that name is registered already."""

    status = 409
    error_type = "ConflictStatusException"


class DownloadsDisabled(WorkflowError):
    """The workflow or one of its models must be downloaded, but the model API is off."""

    status = 405
    error_type = "MethodNotAllowedException"


class InvalidWorkflow(WorkflowError):
    """The archive, its manifest or its specification cannot be read."""

    error_type = "InvalidWorkflowException"


class InvalidSpec(InvalidWorkflow):
    """A value in the specification is wrong."""

    status = 400


class InvalidDag(WorkflowError):
    """The graph of the specification is no graph with one start node and without cycles."""

    status = 400
    error_type = "InvalidDAGException"


class RegistrationFailed(WorkflowError):
    """Some nodes could not be registered as models; the others are unregistered again."""


class NodeFailed(WorkflowError):
    """A node, which runs a model, gave no usable answer, so the workflow has none.

    `cause` is why the node's model gave no answer; None if the handler answered with an error or too late. An empty
    reason: there is no more to say than the cause. `refusal` is what a worker has told of the client's request itself,
    which it cannot read, or which does not fit the model. `retry_after` is in how many seconds the client may come
    back.
    """

    error_type = "InternalServerException"

    def __init__(
        self,
        node: str,
        model_name: str,
        reason: str,
        cause: Cause | None,
        refusal: Part | None = None,
        *,
        retry_after: int = 1,
    ) -> None:
        super().__init__(f"Error executing {node}", reason)
        self.node = node
        self.model_name = model_name
        self.cause = cause
        self.refusal = refusal
        self.retry_after = retry_after
