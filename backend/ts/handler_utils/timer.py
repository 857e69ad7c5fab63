"""Reports how long a handler's steps take, where the model's configuration asks for it."""

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Method = TypeVar("_Method", bound=Callable[..., Any])


def timed(function: _Method) -> _Method:
    """Make a method report its milliseconds, work on the GPU included, as the metric ``ts_handler_<method>``.

    It does so only if model-config.yaml says ``handler: {profile: true}``.
    """

    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = getattr(self.context, "model_yaml_config", None) or {}
        if not (config.get("handler") or {}).get("profile"):
            return function(self, *args, **kwargs)
        _wait_for_gpu()
        started = time.perf_counter()
        result = function(self, *args, **kwargs)
        _wait_for_gpu()
        duration = (time.perf_counter() - started) * 1000
        self.context.metrics.add_time(f"ts_handler_{function.__name__}", round(duration, 2))
        return result

    return cast("_Method", wrapper)


def _wait_for_gpu() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()
