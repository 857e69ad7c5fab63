"""Errors that a model raises to choose the status of the response."""

from __future__ import annotations


class MLServerError(Exception):
    """The request is answered with an error.

    Args:
        msg: What was wrong, for the client.
        status_code: The HTTP status; over gRPC the code that stands for it.
    """

    def __init__(self, msg: str, status_code: int = 400) -> None:
        super().__init__(msg)
        self.status_code = status_code


class InvalidModelURI(MLServerError):
    """``parameters.uri`` of the model's settings names nothing that is there."""

    def __init__(self, name: str, model_uri: str | None = None) -> None:
        super().__init__(f"Invalid URI specified for model {name}" + (f" ({model_uri})" if model_uri else ""), 422)


class ModelNotFound(MLServerError):
    """There is no such model, or not in that version."""

    def __init__(self, name: str, version: str | None = None) -> None:
        which = name if version is None else f"{name} with version {version}"
        super().__init__(f"Model {which} not found", 404)


class ModelNotReady(MLServerError):
    """The model is there, but ``ready`` is false."""

    def __init__(self, name: str, version: str | None = None) -> None:
        which = name if version is None else f"{name} with version {version}"
        super().__init__(f"Model {which} is not ready yet.", 400)


class InferenceError(MLServerError):
    """The model cannot make a prediction for this request."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg, 400)


class ModelParametersMissing(MLServerError):
    """The model's settings lack ``parameters``."""

    def __init__(self, model_name: str) -> None:
        super().__init__(f"Parameters missing for model {model_name}", 400)
