"""REST paths of a model's own."""

from ts.mlserver.handlers.custom import CustomHandler, custom_handler, get_custom_handlers, register_custom_handler

__all__ = ["CustomHandler", "custom_handler", "get_custom_handlers", "register_custom_handler"]
