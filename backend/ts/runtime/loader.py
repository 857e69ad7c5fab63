"""Imports a TorchServe handler, initializes it and returns it as a `Service`.

Handlers are named as in TorchServe: ``file.py``, ``module`` or ``module:function``, each with or without a folder in
front, or the name of a built-in handler.
"""

import importlib
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import CoroutineType, ModuleType
from typing import Any

from ts.context import Context
from ts.jobs.errors import LoadError
from ts.jobs.search_path import refuse_taken_name, search_in
from ts.protocol.messages import Load
from ts.runtime.torchserve_handler import TorchServeHandler
from ts.runtime.worker_observer import observers_of
from ts.service import EntryPoint, Service

_BUILT_IN = "ts.torch_handler"
_BASE_HANDLER = "ts.torch_handler.base_handler"
#: How handlers that are based on that module get batches of another protocol.
_BATCHES = "ts.torch_handler.open_inference_batches"
_ENVELOPES = "ts.torch_handler.request_envelope"
#: ``inspect.CO_COROUTINE``: the code is that of an ``async def``.
_COROUTINE_FLAG = 0x80


def load_service(load: Load, wait_for: Callable[[Awaitable[Any]], Any] | None = None) -> Service:
    """Import and initialize the model that ``load`` describes.

    Args:
        wait_for: Runs a coroutine to its end; required for an asynchronous handler, None for a synchronous one.

    Raises:
        LoadError: The handler does not exist, or lacks the methods of a handler.
        Exception: The handler's own code raised it.
    """
    module, function_name = _import_handler(load["handler"], load["model_dir"])
    entry_point, initialize, instance = _entry_point(module, function_name, load["adapters"])
    if getattr(instance, "is_stateful", False) and not load["sequences"]:
        raise LoadError(f"The parameter state in {load['handler']} needs sequenceBatching: true in model-config.yaml.")
    _check_kind(entry_point, load["handler"], asynchronous=wait_for is not None)
    whole_batches = not (load["continuous"] or load["asynchronous"])
    if not load["envelope"] and whole_batches and _BASE_HANDLER in sys.modules:
        entry_point = importlib.import_module(_BATCHES).in_rows(instance, entry_point)
    if load["envelope"]:
        entry_point = _wrap_in_envelope(load["envelope"], entry_point, whole_batches=whole_batches)
    service = Service(
        load["model_name"],
        load["model_dir"],
        load["manifest"],
        entry_point,
        load["gpu_id"],
        load["batch_size"],
        load["limit_max_image_pixels"],
    )
    service.envelope = load["envelope"]
    service.handler = instance
    service.on_sequence_end = getattr(instance, "on_sequence_end", None)
    service.on_cancel = getattr(instance, "on_cancel", None)
    service.declared = getattr(instance, "declared", {})
    context = service.context
    context.make_metrics = partial(_metrics_cache, load)
    context.system_properties["server_version"] = load["server_version"]
    context.system_properties["model_version"] = load["model_version"]
    context.system_properties["processors"] = load["processors"]
    context.system_properties["gpu_room"] = load["gpu_room"]
    (
        context.header_key_sequence_id,
        context.header_key_sequence_start,
        context.header_key_sequence_end,
    ) = load["header_keys"]
    context.cache_settings = load.get("cache")
    context.rebuild = getattr(instance, "rebuild", None)
    context.migrate = getattr(instance, "migrate", None)
    outcome = initialize(context)
    if isinstance(outcome, CoroutineType):
        if wait_for is None:
            raise LoadError("initialize is a coroutine; that needs asyncCommunication: true in model-config.yaml.")
        wait_for(outcome)
    for observer in observers_of(load):
        service.entry_point = observer.around(service.entry_point)
    if load["sequences"] and load["steps"]:
        service.steps = importlib.import_module(load["steps"]).open_steps(context, load)
    return service


def _metrics_cache(load: Load) -> Any:
    from ts.metrics.metrics_cache import MetricsCache  # for handlers that have metrics

    return MetricsCache(load["model_name"], load["metrics"])


def prepare(
    service: Service,
    handler: TorchServeHandler,
    load: Load,
    wait_for: Callable[[Awaitable[Any]], Any] | None = None,
) -> None:
    """Let plugins do with a handler what ``load`` says they must before the model counts as loaded.

    Raises LoadError: a plugin cannot; memory that ran out is its cause.
    """
    for module, argument in load["preparations"].items():
        importlib.import_module(module).prepare(service, handler, load, argument, wait_for)


def _check_kind(entry_point: EntryPoint, handler: str, *, asynchronous: bool) -> None:
    """Refuse a coroutine where the worker calls plain functions, and the other way round."""
    if asynchronous:
        import inspect  # 10 ms, which only asyncio needs too

        if not inspect.iscoroutinefunction(inspect.unwrap(entry_point)):
            raise LoadError(f"asyncCommunication is true, so handle must be a coroutine ('async def') in {handler}.")
    elif getattr(getattr(entry_point, "__code__", None), "co_flags", 0) & _COROUTINE_FLAG:
        raise LoadError(f"handle is a coroutine in {handler}; that needs asyncCommunication: true in the model config.")


def _import_handler(handler: str, model_dir: str) -> tuple[ModuleType, str]:
    path, _, function_name = handler.partition(":")
    folder, _, name = path.removesuffix(".py").rpartition("/")
    folders = [os.path.join(model_dir, folder), model_dir] if folder else [model_dir]  # noqa: PTH118
    search_in(folders)
    refuse_taken_name(name, folders, "The handler's file")
    module = _import(name) or _import(f"{_BUILT_IN}.{name}")
    if module is None:
        raise LoadError(
            f"There is no handler {handler!r}: no module {name!r} in {model_dir}, and no built-in handler of that name."
        )
    return module, function_name


def _import(name: str) -> ModuleType | None:
    """Import a module; return None if it does not exist, as opposed to a module that its own code imports."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None


def _entry_point(
    module: ModuleType, function_name: str, adapters: Sequence[str]
) -> tuple[EntryPoint, Callable[[Context], Any], Any]:
    """Return the function for batches, the function that initializes the model, and the object with hooks, or None.

    ``function_name`` is empty if the handler names none.
    """
    for adapter in adapters:
        handler = importlib.import_module(adapter).adapt(module, function_name)
        if handler is not None:
            return handler.entry_point, handler.initialize, handler
    function_name = function_name or "handle"
    function: EntryPoint | None = getattr(module, function_name, None)
    if function is not None:
        return function, lambda context: function(None, context), None
    classes = list_classes_from_module(module)
    if len(classes) != 1:
        has = f"has the classes {', '.join(each.__name__ for each in classes)}" if classes else "has no class"
        raise LoadError(
            f"{module.__name__}.py has no model: it {has}, and no function {function_name!r}. Write @serve"
            " (from ts import serve) above a function or class that answers requests,"
            " or write one class with initialize and handle"
        )
    instance: Any = classes[0]()
    if not hasattr(instance, "handle"):
        raise LoadError(f"Expect handle method in class {classes[0]}: define handle(self, data, context)")
    if not hasattr(instance, "initialize"):
        raise LoadError(f"Expect initialize method in class {classes[0]}: define initialize(self, context)")
    return instance.handle, instance.initialize, instance


def _wrap_in_envelope(envelope: str, entry_point: EntryPoint, *, whole_batches: bool) -> EntryPoint:
    module = _import(f"{_ENVELOPES}.{envelope}")
    if module is None:
        raise LoadError(f"There is no service envelope {envelope!r}.")
    wrapper: Any = list_classes_from_module(module)[0](entry_point)
    if not whole_batches and getattr(wrapper, "needs_whole_batches", True):
        raise LoadError(
            f"The service envelope {envelope!r} works neither with continuousBatching nor with asyncCommunication: it "
            "needs all results of a batch at once. Leave one out, or use the envelope 'body'."
        )
    handle: EntryPoint = wrapper.handle
    return handle


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """Return the classes defined in ``module`` itself, sorted by name; only subclasses of ``parent_class`` if given."""
    return [
        member
        for _, member in sorted(vars(module).items())
        if isinstance(member, type)
        and member.__module__ == module.__name__
        and (parent_class is None or issubclass(member, parent_class))
    ]
