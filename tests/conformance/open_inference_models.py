"""Models for clients of the Open Inference Protocol."""

import json
from pathlib import Path

from tests.e2e.gate import WAITING
from tests.e2e.running_server import model_folder

#: Two outputs of its one input.
ARITHMETIC = """
def handle(data, context):
    if data is None:
        return None
    return [{"next": row["x"] + 1, "double": row["x"] * 2} for row in data]
"""
ARITHMETIC_CONFIG = """
inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]
outputs: [{name: next, datatype: FP32, shape: [-1, 2]}, {name: double, datatype: FP32, shape: [-1, 2]}]
"""

#: Gives what it is sent.
ECHO = """
def handle(data, context):
    if data is None:
        return None
    for index, row in enumerate(data):
        sent = context.get_request_header(index, "x-mine")
        if sent is not None:
            context.set_response_header(index, "X-Yours", sent)
        if isinstance(row["body"], bytes) and row["body"] == b"raise":
            raise ValueError("as it was told")
    return [row["body"] for row in data]
"""

#: The same for half precision, which numpy does not know.
HALVES_CONFIG = "outputs: [{name: x, datatype: BF16, shape: [-1]}]\n"

#: Adds up what each sequence is sent.
SUM = (
    WAITING
    + """
class Sum:
    def initialize(self, context):
        self.sums = {}

    def handle(self, data, context):
        return [{"OUTPUT": self.add(index, row["INPUT"], context)} for index, row in enumerate(data)]

    def add(self, index, value, context):
        sequence = context.get_sequence_id(index)
        if context.get_request_header(index, "ts_request_sequence_start") == "true":
            self.sums[sequence] = 0
        self.sums[sequence] += value
        return self.sums[sequence]

    def on_sequence_end(self, sequence_id, reason):
        self.sums.pop(sequence_id, None)
"""
)
SEQUENCES = "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\nmaxNumSequence: 100\nbatchSize: 4\nmaxBatchDelay: 1\n"

#: Streams the numbers below the one it is sent; says nothing more at the end.
COUNT = """
from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    for number in range(int(data[0]["body"][0])):
        send_intermediate_predict_response([number], context.request_ids, "ok", 200, context)
    return [""]
"""
COUNT_CONFIG = "decoupled: true\noutputs: [{name: number, datatype: INT64, shape: [1]}]\n"

#: Waits at its gate until the call is cancelled.
ENDLESS = """
import asyncio
import os


async def handle(data, context):
    if data is None:
        return None
    directory = context.system_properties["model_dir"]
    open(os.path.join(directory, "begun"), "w").close()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        open(os.path.join(directory, "cancelled"), "w").close()
        raise
"""

#: MLServer's contract: one response for each request of a stream, and one at its end.
TALK = """
from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.errors import MLServerError
from mlserver.types import InferenceResponse


class Talk(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        (text,) = StringCodec.decode_input(payload.inputs[0])
        return self._say(f"once {text}")

    async def predict_stream(self, payloads):
        count = 0
        async for payload in payloads:
            (text,) = StringCodec.decode_input(payload.inputs[0])
            if text == "raise":
                raise MLServerError("as it was told", 400)
            count += 1
            yield self._say(f"heard {text}")
        yield self._say(f"heard {count} in all")

    def _say(self, text):
        output = StringCodec.encode_output("said", [text])
        return InferenceResponse(model_name=self.name, outputs=[output])
"""


def write_models(folder: Path) -> dict[str, Path]:
    """Write them all, by name."""
    models = {
        "arithmetic": model_folder(folder, "arithmetic", ARITHMETIC, ARITHMETIC_CONFIG),
        "echo": model_folder(folder, "echo", ECHO),
        "halves": model_folder(folder, "halves", ECHO, HALVES_CONFIG),
        "sum": model_folder(folder, "sum", SUM, SEQUENCES),
        "count": model_folder(folder, "count", COUNT, COUNT_CONFIG),
        "endless": model_folder(folder, "endless", ENDLESS, "asyncCommunication: true\n"),
    }
    talk = models["talk"] = folder / "talk"
    talk.mkdir()
    (talk / "talk.py").write_text(TALK)
    (talk / "model-settings.json").write_text(json.dumps({"name": "talk", "implementation": "talk.Talk"}))
    return models
