"""A script ``inference.py``: its functions, those that stand in for missing ones, and how they are called.

A function gets the ``context`` if it has one parameter more than its arguments, counted with defaults, ``*rest`` and
``**kw``; each function decides for itself.
"""

import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from ts.context import Context
from ts.contracts.sagemaker import default_functions
from ts.contracts.sagemaker.script_name import PROGRAM_VARIABLE, script_name
from ts.jobs.errors import LoadError

#: The functions of a script and how many arguments they get beside the context.
_ARGUMENTS: Final[Mapping[str, int]] = {
    "pre_model_fn": 1,
    "model_fn": 1,
    "model_warmup_fn": 2,
    "input_fn": 2,
    "predict_fn": 2,
    "output_fn": 2,
    "transform_fn": 4,
}
_IN_PLACE_OF: Final = ("input_fn", "predict_fn", "output_fn")

#: A function of a script, with the context as its last argument.
Function = Callable[..., Any]
#: What is called for the functions that a script does not have.
_DEFAULTS: Final[Mapping[str, Function]] = {
    "model_fn": default_functions.model_fn,
    "input_fn": default_functions.input_fn,
    "predict_fn": default_functions.predict_fn,
    "output_fn": default_functions.output_fn,
}


class Script:
    """The functions of a script.

    Raises LoadError: the script is missing, or has functions that cannot be called; Exception: its own code raised it.
    """

    def __init__(self, model_dir: str) -> None:
        name = script_name()
        module = _import(name, model_dir)
        own = {each: function for each in _ARGUMENTS if (function := getattr(module, each, None)) is not None}
        if "transform_fn" in own and (others := [each for each in _IN_PLACE_OF if each in own]):
            raise LoadError(f"{name}.py has transform_fn and {', '.join(others)}: transform_fn takes their place.")
        self._functions = dict(_DEFAULTS) | {
            each: _with_context(function, f"{name}.{each}", _ARGUMENTS[each]) for each, function in own.items()
        }

    def load(self, model_dir: str, context: Context) -> Any:
        """Return what ``model_fn`` returns, after ``pre_model_fn`` and before ``model_warmup_fn``."""
        functions = self._functions
        if "pre_model_fn" in functions:
            functions["pre_model_fn"](model_dir, context)
        model = functions["model_fn"](model_dir, context)
        if "model_warmup_fn" in functions:
            functions["model_warmup_fn"](model_dir, model, context)
        return model

    def transform(self, model: Any, body: Any, content_type: str | None, accept: str, context: Context) -> Any:
        """Return what the script answers: a body, or a tuple of a body and its content type."""
        functions = self._functions
        if "transform_fn" in functions:
            return functions["transform_fn"](model, body, content_type, accept, context)
        data = functions["input_fn"](body, content_type, context)
        return functions["output_fn"](functions["predict_fn"](data, model, context), accept, context)


def _import(name: str, model_dir: str) -> ModuleType | None:
    """Return the script, or None if there is none and the server's environment names none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        if PROGRAM_VARIABLE not in os.environ:
            return None
        raise LoadError(
            f"There is no script {name}.py in {model_dir} or in its folder code; {PROGRAM_VARIABLE} names another one."
        ) from None


def _with_context(function: Function, name: str, count: int) -> Function:
    """Return a function that takes the context as its last argument, whether or not ``function`` does."""
    if not callable(function):
        raise LoadError(f"{name} is a {type(function).__name__}; it must be a function.")
    given = len(inspect.signature(function).parameters)
    if given == count:
        return lambda *arguments: function(*arguments[:-1])
    if given == count + 1:
        return function
    raise LoadError(f"{name} takes {given} arguments; it must take {count}, or {count + 1} with the context.")
