"""The tables of TorchServe's archiver: built-in handlers, and what each format adds to the model's name."""

from torchserve_py.archive.handler_name import BUILT_IN_HANDLERS as model_handlers
from torchserve_py.archive.pack import SUFFIXES as archiving_options

__all__ = ["archiving_options", "model_handlers"]
