"""Between the requests, responses and errors of Open Inference and those of MLServer's models."""

import functools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from mlserver import types
from mlserver.errors import MLServerError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from ts.apis.open_inference.tensors import flat, flat_list
from ts.apis.open_inference.types import InferenceRequest, InferenceResponse, Tensor
from ts.contracts.mlserver.unread_data import UnreadData
from ts.jobs.errors import RowFailure, device_failure, text_of
from ts.protocol.messages import STATUS_CANCELLED

logger = logging.getLogger(__name__)

#: Problems of a request that its answer names, and characters of a value that the answer shows.
_MOST_PROBLEMS: Final = 100
_LONGEST_INPUT: Final = 200
#: From this length on, a list of elements is not validated.
_LONG: Final = 1000


def model_request(request: InferenceRequest, headers: Mapping[str, str]) -> types.InferenceRequest:
    """Return a request as models get it, with its HTTP headers or gRPC metadata. Raises Failure: a value is invalid."""
    members: dict[str, Any] = {
        "id": request.id or "",
        "parameters": {**request.parameters, "headers": headers},
        "inputs": [
            {
                "name": tensor.name,
                "shape": tensor.shape,
                "datatype": tensor.datatype,
                "parameters": tensor.parameters or None,
                "data": _model_data(tensor),
            }
            for tensor in request.inputs
        ],
    }
    if request.outputs is not None:
        members["outputs"] = [{"name": each.name, "parameters": each.parameters or None} for each in request.outputs]
    try:
        return types.InferenceRequest.model_validate(members)
    except ValidationError as error:
        (first, *_) = error.errors()
        place = ".".join(str(each) for each in first["loc"])
        message = f"The request's {place} is {first['input']!r:.{_LONGEST_INPUT}}: {first['msg']}."
        raise RowFailure(422, message, details=_details(error)) from error


def malformed(failure: RowFailure, body: bytes) -> RowFailure:
    """Return the failure of a request that cannot be read, as MLServer answers it: with all that is wrong with it.

    A request that MLServer would take, and this server does not, keeps its failure. So does one with binary tensors:
    MLServer knows none.
    """
    if failure.status not in (400, 422) or failure.details is not None:
        return failure
    details: list[dict[str, Any]] = [{"type": "missing", "loc": ["body"], "msg": "Field required", "input": None}]
    try:
        document = orjson.loads(body) if body else None
        if document is not None:
            types.InferenceRequest.model_validate(document, from_attributes=True)
            return failure
    except orjson.JSONDecodeError as error:
        where, why = ["body", error.pos], {"error": error.msg}
        details = [{"type": "json_invalid", "loc": where, "msg": "JSON decode error", "input": {}, "ctx": why}]
    except ValidationError as error:
        details = _details(error)
    return RowFailure(422, failure.message, details=details)


def _details(error: ValidationError) -> list[dict[str, Any]]:
    """Return what is wrong with a request in FastAPI's form; what is long is left out."""
    problems = []
    for each in error.errors(include_url=False)[:_MOST_PROBLEMS]:
        problem = {**each, "loc": ["body", *each["loc"]]}
        if len(repr(each["input"])) > _LONGEST_INPUT:
            del problem["input"]
        problems.append(problem)
    return problems


def wire_response(response: Any, request: types.InferenceRequest) -> InferenceResponse:
    """Return a model's response with the request's id. Raises Failure: the model returned something else."""
    if not isinstance(response, types.InferenceResponse):
        raise RowFailure(500, f"The model returned a {type(response).__name__}; it must be an InferenceResponse.")
    return InferenceResponse(
        model_name=response.model_name,
        model_version=response.model_version,
        id=request.id,
        parameters=parameters_of(response),
        outputs=[_wire_output(output) for output in response.outputs],
    )


def parameters_of(parametrised: Any) -> dict[str, Any]:
    """Return the parameters that are set, by name."""
    parameters = parametrised.parameters
    if parameters is None:
        return {}
    # The dump of pydantic would do, but takes several times as long.
    members = {**parameters.__dict__, **(parameters.__pydantic_extra__ or {})}
    return {name: value for name, value in members.items() if value is not None and not name.startswith("_")}


def _model_data(tensor: Tensor) -> types.TensorData | list[Any]:
    if not isinstance(tensor.data, list):
        return UnreadData.of_tensor(tensor)
    elements = flat_list(tensor)
    # Validation copies a list; not validating takes longer for a short one.
    return elements if len(elements) < _LONG else types.TensorData.model_construct(elements)


def _wire_output(output: types.ResponseOutput) -> Tensor:
    datatype = str(getattr(output.datatype, "value", output.datatype))
    unread = unread_tensor(output.data)
    if unread is None:
        data: Any = flat(getattr(output.data, "root", output.data))
    else:
        data = unread.data if unread.datatype == datatype else flat_list(unread)
    return Tensor(output.name, datatype, list(output.shape), data, parameters_of(output))


def unread_tensor(data: Any) -> Tensor | None:
    """Return the tensor that a model's data are, None if they are a list."""
    return data.tensor if isinstance(data, UnreadData) else None


def lower_case_headers(headers: Sequence[tuple[Any, Any]]) -> dict[str, str]:
    """Return the request's headers by their names in lower case, without those that the server itself has added."""
    return {
        name: value.decode("latin-1") if type(value) is bytes else str(value)
        for raw, value in headers
        if (name := _name(raw))
    }


@functools.lru_cache(maxsize=1024)
def _name(raw: bytes | str) -> str:
    """Return a header's name in lower case; "" for one of the server's own."""
    text = raw.decode("latin-1") if isinstance(raw, bytes) else raw
    return "" if text.startswith(":") else text.lower()


def failure_of(error: Exception) -> RowFailure:
    """Return status and message for what a model has raised: MLServer's own errors have a status, others are 500."""
    if isinstance(error, RowFailure):
        return error
    if isinstance(error, MLServerError):
        return RowFailure(_status_of(error.status_code, lowest=400), text_of(error))
    if isinstance(error, HTTPException):
        detail: Any = error.detail
        return RowFailure(
            _status_of(error.status_code, lowest=200),
            detail if isinstance(detail, str) else json.dumps(detail, default=str),
            details=detail,
            headers=[(str(name), str(value)) for name, value in (error.headers or {}).items()],
        )
    failure = device_failure(error)
    if failure is not None:
        return failure
    logger.exception("The model failed")
    return RowFailure(500, f"{type(error).__module__}.{type(error).__qualname__}: {text_of(error)}")


def _status_of(code: object, *, lowest: int) -> int:
    """Return the status that the model has failed with, 500 if it is none that its client can be told."""
    if isinstance(code, int) and lowest <= code <= 599 and code != STATUS_CANCELLED:
        return int(code)
    logger.warning("The model failed with the status %r, which is no HTTP status of an error: answering 500", code)
    return 500


_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class CloudEvents:
    """Makes the headers of one model."""

    def __init__(self, model_name: str, server_name: str) -> None:
        try:
            namespace = _NAMESPACE_FILE.read_text().strip()
        except OSError:  # outside of Kubernetes
            namespace = ""
        source = f"io.seldon.serving.deployment.{server_name}"
        self._common = {
            "Ce-Specversion": "0.3",
            "Ce-Source": f"{source}.{namespace}" if namespace else source,
            "Ce-Modelid": model_name,
            "Ce-Inferenceservicename": server_name,
            "Ce-Endpoint": model_name,
        }
        if namespace:
            self._common["Ce-Namespace"] = namespace

    def headers(self, kind: Literal["request", "response"], request_id: str | None) -> dict[str, str]:
        """Return the headers for a request, or for the response to it."""
        headers = {**self._common, "Ce-Type": f"io.seldon.serving.inference.{kind}"}
        if request_id and request_id.isprintable():  # a header cannot hold other characters
            headers["Ce-Id"] = headers["Ce-Requestid"] = request_id
        return headers
