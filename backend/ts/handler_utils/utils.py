"""Streaming a response in parts, and importing a class by name."""

import importlib

from ts.protocol.otf_message_handler import send_intermediate_predict_response

__all__ = ["import_class", "send_intermediate_predict_response"]


def import_class(class_name: str, module_prefix: str | None = None) -> type:
    """Return the class ``module.Class``, below ``module_prefix`` if given. Raises ImportError: there is none."""
    path = f"{module_prefix}.{class_name}" if module_prefix else class_name
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ImportError(f"{class_name!r} does not say which module the class is in")
    found = getattr(importlib.import_module(module_name), name, None)
    if not isinstance(found, type):
        raise ImportError(f"module {module_name!r} has no class {name!r}")
    return found
