"""The modules that workers import for what a model needs: workers get their names, and the server imports none."""

from collections.abc import Mapping
from typing import Final

from torchserve_py.base.settings.schemas.model_config import ASYNCHRONOUS, CONTINUOUS
from ts.apis.openai.openai_calls import OPENAI
from ts.protocol.messages import (
    COMPARED_ANSWERS,
    GR00T,
    OPEN_INFERENCE_GRPC,
    OPEN_INFERENCE_REST,
    OPENPI,
    SAGEMAKER_CLOSE,
)

#: Each has ``adapt(module, function)``, which returns a handler of what a model's module has, with ``entry_point`` and
#: ``initialize``, or None; ``function`` is what the registration chooses of the module, "" for its only model.
ADAPTERS: Final = ("ts.contracts.served_functions.adapter",)
#: Has ``parse_form(content_type, body)``, which returns name, content type and value of each field of a form.
FORMS: Final = "ts.contracts.forms.form_bodies"
#: Its ``open_steps(context, load)`` returns what counts the steps of a model's sequences, a
#: `ts.jobs.sequence_steps.Steps`.
STEPS: Final = "ts.sequences.steps.opening"
#: By the key of ``model-config.yaml`` that asks for another way to run TorchServe's handlers than with batches: what
#: loads such a handler, see `ts.process.worker.load_model`.
RUNTIMES: Final[Mapping[str, str]] = {
    CONTINUOUS: "ts.contracts.continuous_batching.continuous",
    ASYNCHRONOUS: "ts.contracts.async_calls.async_handler",
}
#: By the protocol of a body, which `InferRow` names: what reads its rows for TorchServe's handlers. Its
#: ``row_reader(context, declared, envelope)`` returns a function from an `InferRow` to a `ts.jobs.row.Row`.
ROW_READERS: Final[Mapping[str, str]] = {
    OPEN_INFERENCE_REST: "ts.apis.open_inference.open_inference_rows",
    OPEN_INFERENCE_GRPC: "ts.apis.open_inference.open_inference_rows",
    OPENAI: "ts.apis.openai.responses_rows",
    OPENPI: "ts.apis.openpi.openpi_rows",
    GR00T: "ts.apis.gr00t.gr00t_rows",
    SAGEMAKER_CLOSE: "ts.apis.sagemaker.closing_rows",
    COMPARED_ANSWERS: "ts.versions.traffic.compared_answers",
}
