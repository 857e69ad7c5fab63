"""Loads a model of SageMaker's: finds its script, and runs each request as a call of the script's functions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ts.connection.frontend_connection import FrontendConnection
from ts.connection.heartbeat import Heartbeat
from ts.contracts.sagemaker.toolkit import stand_in
from ts.jobs.errors import RowFailure
from ts.jobs.row import Row, RowReader
from ts.jobs.search_path import search_in
from ts.process.worker import load_handler
from ts.protocol.frames import Buffer
from ts.protocol.messages import InferRow, Load
from ts.runtime.decoded_rows import media_type
from ts.runtime.torchserve_handler import TorchServeHandler

#: Where the script and the modules that it imports are in the model's folder.
CODE: Final = "code"
_HANDLER: Final = "ts.contracts.sagemaker.script_handler"
#: The names of a body among the parameters of a request.
_BODY_NAMES: Final = (None, "body", "data")


def load(
    load: Load, connection: FrontendConnection, heartbeat: Heartbeat
) -> tuple[Callable[[], None], Mapping[str, Any]]:
    """Load a model, see `ts.process.worker.load_model`. Raises LoadError: there is no script, or it is incomplete."""
    stand_in()
    folder = Path(load["model_dir"])
    search_in([str(each) for each in (folder / CODE, folder) if each.is_dir()])
    load["handler"], load["envelope"] = _HANDLER, None
    return load_handler(load, connection, heartbeat, ScriptRuntime)


class ScriptRuntime(TorchServeHandler):
    """Gives each request to the script in a call of its own, with the body as it came."""

    def step(self) -> None:
        """Run the oldest batch, one row after the other: each has its own answer, also when another one fails."""
        if self._frames:
            sent, histories = self._next_batch()
            for row in self.begin_rows(sent, histories):
                self.run_batch([row])

    def _find_reader(self, protocol: str | None) -> RowReader:
        if protocol is not None:
            raise RowFailure(501, "This model takes no tensors: send its body to /invocations or /predictions/{model}.")
        return read_row


def read_row(row: InferRow) -> Row:
    """Return a row whose value ``body`` has the bytes of the request, whatever its content type is."""
    body: Buffer = b""
    if type(row.body) is list:  # a request with parameters in its query
        for name, type_, value in row.body:
            if (name.decode() if isinstance(name, bytes) else name) in _BODY_NAMES:
                body, content_type = value.encode() if isinstance(value, str) else value, type_
                break
        else:
            content_type = None
    else:
        body, content_type = row.body, row.content_type
    return Row(row.job_id, {"body": body}, row.headers, [("body", media_type(content_type))])
