"""``torch.compile`` as the model's configuration asks for it (``pt2`` in model-config.yaml)."""

import logging
import os
from typing import Any

import torch

from ts.utils.util import check_valid_pt2_backend

logger = logging.getLogger(__name__)


def compile_options(config: dict[str, Any]) -> dict[str, Any] | None:
    """Return the keyword arguments for ``torch.compile``, or None if the model is not to be compiled.

    ``pt2`` is ``{compile: {enable: true, …arguments}}``; the older forms ``<backend>`` and ``{…arguments}`` work too. A
    backend that is not known is logged and the model stays as it is. Raises ValueError: ``pt2`` is neither a string nor
    a mapping.
    """
    pt2 = config.get("pt2")
    options: dict[str, Any]
    if pt2 is None:
        return None
    if isinstance(pt2, str):
        options = {"backend": pt2}
    elif not isinstance(pt2, dict):
        raise ValueError(f"pt2 in model-config.yaml must be a string or a mapping, got {pt2!r}")
    elif "compile" in pt2:
        options = dict(pt2["compile"] or {})
        if options.pop("enable", False) is not True:
            return None
    elif "export" in pt2:
        return None
    else:
        options = dict(pt2)
    if "backend" in options and not check_valid_pt2_backend(options["backend"]):
        return None
    return options


def compile_model(model: Any, options: dict[str, Any], device: Any) -> Any:
    """Return ``model`` compiled, or as it is (and a warning in the log) if nothing can be compiled so on ``device``.

    torch compiles when a model is called. So that a compiler that is missing or does not work shows here and not in
    the first request, something small is compiled now. A part of the model that cannot be compiled runs uncompiled.
    """
    text = ", ".join(f"{name} {value}" for name, value in options.items())
    try:
        # torch.compile reads this when it imports the compiler; the later assignment below holds for this thread only.
        os.environ.setdefault("TORCHDYNAMO_SUPPRESS_ERRORS", "1")
        compiled = torch.compile(model, **options)
        with torch.inference_mode(), torch._dynamo.config.patch(suppress_errors=False):
            torch.compile(torch.nn.Linear(2, 2).to(device), **options)(torch.ones(2, 2, device=device))
        torch._dynamo.config.suppress_errors = True
    except Exception:
        logger.warning("Compiling the model with %s failed; it is used uncompiled", text or "defaults", exc_info=True)
        return model
    logger.info("Compiled model with %s", text or "defaults")
    return compiled


def optimize_with_ipex(model: Any, device: Any) -> Any:
    """Return ``model`` optimized by the Intel extension, if ``TS_IPEX_ENABLE`` asks for it and it is installed."""
    if os.environ.get("TS_IPEX_ENABLE", "false") != "true":
        return model
    try:
        import intel_extension_for_pytorch as ipex  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        logger.warning("TS_IPEX_ENABLE is set but intel-extension-for-pytorch is not installed; it is not used")
        return model
    optimized = ipex.optimize(model.to(memory_format=torch.channels_last).to(device))
    logger.info("Optimized model with ipex")
    return optimized
