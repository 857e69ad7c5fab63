"""The handler that others build on: loads eager and TorchScript models and runs preprocess, inference, postprocess."""

import abc
import importlib
import importlib.util
import logging
import os
import threading
import time
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ts.handler_utils.timer import timed
from ts.jobs.device_copies import computing_on, own_stream, rows_on
from ts.jobs.processor_share import thread_count
from ts.torch_handler.built_in_rows import answer_rows, row_value
from ts.torch_handler.computing import Computing, compile_model, compile_options, optimize_with_ipex
from ts.torch_handler.input_rows import KnownInputs, read_rows
from ts.torch_handler.model_loading import (
    check_content,
    is_aot_inductor_package,
    is_torchscript,
    load_eager_model,
    load_exported_program,
    load_onnx_session,
    load_whole_model,
    run_onnx_session,
)
from ts.utils.optional_packages import missing_package
from ts.utils.util import BadRequestError, PredictionException, load_label_mapping

logger = logging.getLogger(__name__)


class BaseHandler(abc.ABC):  # noqa: B024 - TorchServe's base class; all of its hooks have defaults
    """Loads the model that the archive's manifest names and answers batches with it. Override any hook."""

    computing: Computing | None = None  # None before `initialize`
    stream: Any = None  # of CUDA, for all calls; None on other devices
    one_by_one = False  # whether the hooks take one row at a time

    def __init__(self) -> None:
        self.model: Any = None  # on `device` and in evaluation mode
        self.mapping: dict[str, str] | None = None  # class index to class name, from index_to_name.json
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.model_pt_path: str | None = None  # of the serialized model, if there is one
        self.manifest: Any = None
        self.map_location: str | None = None  # "cuda", "xpu", "mps" or "cpu"; None on an XLA device
        self.model_yaml_config: dict[str, Any] = {}
        self.explain = False
        self.target = 0  # the class to explain
        self.profiler_args: dict[str, Any] = {}  # for torch.profiler.profile
        self._inputs = KnownInputs()

    def initialize(self, context: Any) -> None:
        """Load the model. Raises RuntimeError, ValueError: it cannot be loaded, or its file defines not one class."""
        self.context = context
        self.model_yaml_config = getattr(context, "model_yaml_config", None) or {}
        self.manifest = context.manifest
        properties = context.system_properties
        self._choose_device(properties.get("gpu_id"))
        model_dir = properties.get("model_dir")
        self.computing = Computing.of(self.model_yaml_config, self.device)
        self.model = self.computing.prepared(self._load_model(model_dir, (self.manifest or {}).get("model") or {}))
        self.stream = own_stream(self.device)
        options = compile_options(self.model_yaml_config)
        if options is not None:
            self.model = compile_model(self.model, options, self.device)
        else:
            self.model = optimize_with_ipex(self.model, self.device)
        self.mapping = load_label_mapping(os.path.join(model_dir, "index_to_name.json"))  # noqa: PTH118
        self.initialized = True

    @timed
    def preprocess(self, data: Any) -> Any:
        """Return the batch as a tensor; the default takes rows of numbers, or requests with such bodies.

        Raises BadRowError: a row holds no numbers. RowsApartError: rows differ in shape.
        """
        if not isinstance(data, list):
            return rows_on(data, self.input_device)
        return read_rows([row_value(row) for row in data], self.input_device)

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what the model makes of a batch; an ONNX model with one input gets it as an array."""
        if self._is_onnx:
            return run_onnx_session(self.model, data)
        return (self.computing or Computing(self.device)).run(self.model, data, *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> Any:
        """Return the model's output as a list with one element per row."""
        return data.tolist()

    def handle(self, data: Any, context: Any) -> Any:
        """Answer a batch: a list with one result per row; a row that fails has an error for itself."""
        started = time.perf_counter()
        self.context = context
        with computing_on(self.stream):
            output = answer_rows(self._answer, data, context, one_by_one=self.one_by_one)
        context.metrics.add_time("HandlerTime", round((time.perf_counter() - started) * 1000, 2), None, "ms")
        return output

    def _answer(self, data: Any) -> Any:
        if self._is_describe():
            return [self.describe_handle()]
        if os.environ.get("ENABLE_TORCH_PROFILER"):
            if self.manifest is None:
                self.manifest = self.context.manifest
            output, _ = self._infer_with_profiler(data=data)
            return output
        prepared = self.preprocess(data)
        if self._is_explain():
            return self.explain_handle(prepared, data)
        if type(self).inference is not BaseHandler.inference:
            return self.postprocess(self.inference(prepared))
        return self.postprocess(self._inputs.watch(self.inference, prepared))

    def sleep(self) -> None:
        """Move the model to the host's memory; called with ``sleep: true`` where another model needs the GPU.

        Raises AttributeError: it is no module of PyTorch's.
        """
        self.model.to("cpu")

    def wake(self) -> None:
        """Move the model back to its device, before the next batch."""
        self.model.to(self.device)

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> Any:
        """Return the explanation of row 0, by the subclass's ``get_insights(tensor_data, raw, target)``."""
        logger.info("Calculating Explanations")
        row = raw_data[0]
        inputs, target = None, 0
        if isinstance(row, dict):
            inputs = row_value(row)
            target = _class_index(row.get("target"))
        try:
            return self.get_insights(data_preprocess, inputs, target)  # type: ignore[attr-defined]
        except IndexError as error:
            if not target:
                raise
            raise BadRequestError(f"target {target} is not the index of a class of this model: {error}") from error

    def describe_handle(self) -> Any:
        """Return what a customized describe request answers with; None unless overridden."""
        return None

    @property
    def input_device(self) -> Any:
        """Where `inference` takes its inputs from: the device; for ONNX models the host, from which these copy."""
        return torch.device("cpu") if self._is_onnx else self.device

    @property
    def _is_onnx(self) -> bool:
        return self.model_pt_path is not None and self.model_pt_path.endswith(".onnx")

    def get_device(self) -> Any:
        """Return the device that the model is on."""
        return self.device

    def _choose_device(self, gpu_id: Any) -> None:
        self.map_location, self.device = "cpu", torch.device("cpu")
        if gpu_id is not None and torch.cuda.is_available():
            self.map_location, self.device = "cuda", torch.device(f"cuda:{gpu_id}")
            if torch.cuda.get_device_capability(self.device) >= (8, 0):
                torch.set_float32_matmul_precision("high")
                logger.info("Enabled tensor cores")
        elif gpu_id is not None and os.environ.get("TS_IPEX_GPU_ENABLE") == "true" and torch.xpu.is_available():
            self.map_location, self.device = "xpu", torch.device(f"xpu:{gpu_id}")
        elif gpu_id is not None and torch.backends.mps.is_available():
            self.map_location, self.device = "mps", torch.device("mps")
        elif importlib.util.find_spec("torch_xla") is not None:
            import torch_xla.core.xla_model as xla  # type: ignore[import-not-found,unused-ignore]

            self.map_location, self.device = None, xla.xla_device()

    def _load_model(self, model_dir: str, entry: dict[str, Any]) -> Any:
        serialized_file = entry.get("serializedFile")
        path = os.path.join(model_dir, serialized_file) if serialized_file else None  # noqa: PTH118
        self.model_pt_path = path
        if entry.get("modelFile"):
            return self._load_pickled_model(model_dir, entry["modelFile"], path).to(self.device).eval()
        if path is None:
            raise RuntimeError(
                "No model weights could be loaded: the archive has neither a serialized file nor a model file. "
                "Name one when archiving (--serialized-file, --model-file), or override initialize."
            )
        if not os.path.isfile(path):  # noqa: PTH113
            raise RuntimeError(f"No model weights could be loaded: the archive does not hold {serialized_file}.")
        check_content(path)
        return self._load_serialized_model(path)

    def _load_serialized_model(self, path: str) -> Any:
        """Load a model that needs no model file, by its file's name and, where that leaves a choice, its content."""
        if path.endswith(".onnx"):
            return load_onnx_session(path, self.map_location, thread_count())
        if path.endswith(".so"):
            if not self._use_torch_export_aot_compile():
                raise RuntimeError(
                    "No model weights could be loaded: a .so file is loaded as AOTInductor's only if model-config.yaml "
                    "says 'pt2: {export: {aot_compile: true}}'."
                )
            return self._load_torch_export_aot_compile(path)
        if path.endswith(".pt2"):
            if is_aot_inductor_package(path):
                return self._load_torch_export_aot_compile(path)
            return load_exported_program(path, self.device)
        if is_torchscript(path):
            model = self._load_torchscript_model(path)
        else:
            model = load_whole_model(path, self._weights_device(), weights_only=self._weights_only()).to(self.device)
        model.eval()
        return model

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        return torch.jit.load(model_pt_path, map_location=self.device)  # type: ignore[no-untyped-call,unused-ignore]

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: str | None) -> Any:
        return load_eager_model(
            model_dir, model_file, model_pt_path, self._weights_device(), weights_only=self._weights_only()
        )

    def _weights_only(self) -> bool:
        return (self.model_yaml_config.get("handler") or {}).get("weights_only", True) is not False

    def _weights_device(self) -> torch.device | None:
        """Return where weights are loaded to; an XLA device cannot be loaded to."""
        return None if self.map_location is None else self.device

    def _load_torch_export_aot_compile(self, model_so_path: str) -> Any:
        if self.map_location == "cuda":
            torch.cuda.set_device(self.device)
        if model_so_path.endswith(".pt2"):
            return torch._inductor.aoti_load_package(model_so_path)
        return torch._export.aot_load(model_so_path, self.map_location or "cpu")

    def _use_torch_export_aot_compile(self) -> bool:
        pt2 = self.model_yaml_config.get("pt2")
        export = pt2.get("export") if isinstance(pt2, dict) else None
        return isinstance(export, dict) and export.get("aot_compile") is True

    def _infer_with_profiler(self, data: Any) -> tuple[Any, Any]:
        """Answer a batch under ``torch.profiler``; return the answer and the profiler."""
        if not self.profiler_args:
            self.profiler_args["activities"] = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
            self.profiler_args["record_shapes"] = True
        if "on_trace_ready" not in self.profiler_args:
            model_name = ((self.manifest or {}).get("model") or {}).get("modelName", "")
            folder = os.path.join("/tmp/pytorch_profiler", model_name)  # noqa: S108, PTH118 - TorchServe's place
            self.profiler_args["on_trace_ready"] = torch.profiler.tensorboard_trace_handler(folder)
            logger.info("Saving chrome trace to : %s", folder)
        with profile(**self.profiler_args) as profiler:
            with record_function("preprocess"):
                prepared = self.preprocess(data)
            if self._is_explain():
                with record_function("explain"):
                    output = self.explain_handle(prepared, data)
            else:
                with record_function("inference"):
                    output = self.inference(prepared)
                with record_function("postprocess"):
                    output = self.postprocess(output)
        logger.info(profiler.key_averages().table(sort_by="cpu_time_total", row_limit=10))
        return output, profiler

    def _is_explain(self) -> bool:
        if self.context and self.context.get_request_header(0, "explain") == "True":
            self.explain = True
            return True
        return False

    def _is_describe(self) -> bool:
        return bool(self.context) and self.context.get_request_header(0, "describe") == "True"


def _class_index(target: Any) -> int:
    """Return the class that a request names, as a number, an array of one or, out of a form, as text; 0 if none."""
    try:
        return int(target.item() if hasattr(target, "item") else target or 0)
    except (TypeError, ValueError) as error:
        raise BadRequestError(f"target must be the index of a class, got {target!r}") from error


def captum_attr() -> Any:
    """Return ``captum.attr``, whose import takes seconds. Raises PredictionException: it is not installed (501)."""
    try:
        import captum.attr
    except ModuleNotFoundError as error:
        raise PredictionException(str(missing_package(error, "Explanations", "explain")), 501) from error
    return captum.attr


def import_captum_ahead() -> None:
    """Let a thread import ``captum.attr`` where it is installed, so that the first explanation need not wait for it."""
    if importlib.util.find_spec("captum") is not None:
        threading.Thread(target=_import_captum, name="captum", daemon=True).start()


def _import_captum() -> None:
    try:
        importlib.import_module("captum.attr")
    except Exception as error:
        logger.info("captum cannot be imported, so requests for explanations will fail: %s", error)
