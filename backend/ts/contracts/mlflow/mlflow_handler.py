"""Answers requests as ``mlflow models serve`` does, with MLflow's own code: bodies, predictions and errors are its."""

import logging
import os
from typing import Any, Final

from ts.context import Context
from ts.jobs.charsets import decoded
from ts.jobs.errors import device_failure
from ts.protocol.media_types import JSON
from ts.runtime.decoded_rows import media_type

logger = logging.getLogger(__name__)

#: The path of MLflow's version, and the key of a row that asks for it.
VERSION: Final = "version"
#: By this variable MLflow tells models that they are served.
_SERVES: Final = "_MLFLOW_IS_IN_SERVING_ENVIRONMENT"
#: The types that MLflow reads as text.
_TEXTS: Final = (JSON, "text/csv")


class MlflowHandler:
    """A model of any of MLflow's flavours that has a Python function."""

    def initialize(self, context: Context) -> None:
        """Load the model. Raises Exception: MLflow or the model's own code raised it."""
        os.environ.setdefault(_SERVES, "true")
        from mlflow import pyfunc  # an optional package
        from mlflow.exceptions import MlflowException
        from mlflow.pyfunc import scoring_server

        self._server = scoring_server
        self._error = MlflowException
        self._model = pyfunc.load_model(context.system_properties["model_dir"])
        self._schema = self._model.metadata.get_input_schema()

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """Answer the only row of a batch."""
        if VERSION in data[0]:
            return [self._server.VERSION]
        sent = context.get_request_header(0, "Content-Type")
        kind, body = media_type(sent).lower(), data[0]["body"]
        given = decoded(body, sent) if kind in _TEXTS else bytes(body)
        try:
            answer, status, answer_type = self._server.invocations(given, kind, self._model, self._schema)
        except self._error as error:
            failure = device_failure(error.__context__ or error)
            if failure is not None:
                raise failure from error
            answer, status, answer_type = error.serialize_as_json(), error.get_http_status_code(), JSON
            logger.warning("Answered with status %d: %s", status, error.message, exc_info=error.__context__)
        context.set_response_status(status, idx=0)
        context.set_response_content_type(0, answer_type)
        return [answer]
