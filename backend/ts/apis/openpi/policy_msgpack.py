"""Observations and actions of policies in msgpack: what is the same for all clients of policies, openpi's and GR00T's.

Arrays of objects would need pickle and are refused, in both directions; so are structured and complex ones.
"""

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgpack
import numpy as np

from ts.handler_utils.client_arrays import client_array
from ts.handler_utils.shapes import shown
from ts.jobs.errors import HandlerFailed, RowFailure
from ts.jobs.row import Row
from ts.protocol.backed_msgpack import unpack
from ts.protocol.frames import Buffer

#: Truth values, numbers, dates and texts, as numpy writes their types.
_DTYPE: Final = re.compile(r"[<>|=]?(b1|[iu][1248]|f(2|4|8|16)|[SU][1-9]\d{0,5}|[mM]8(\[\d*[a-zA-Z]{1,2}\])?)")
#: The errors of msgpack that do not say what is wrong.
_WITHOUT_WORDS: Final[Mapping[type[Exception], str]] = {
    msgpack.FormatError: "the bytes are no msgpack",
    msgpack.StackError: "maps and lists are nested too deeply",
}


def read_body(body: Any, client: str, value_of: Callable[[dict[Any, Any]], Any]) -> Any:
    """Return what a body says; ``value_of`` returns what a map in it stands for, or raises ValueError.

    Raises RowFailure: the body is no observation of a ``client``.
    """
    try:
        return unpack(body, object_hook=value_of)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        why = str(error) or _WITHOUT_WORDS.get(type(error), type(error).__name__)
        raise RowFailure(400, f"No observation of {client}: {why}") from error


def check_observation(value: Any) -> None:
    """Raise RowFailure: a value is no observation."""
    if not isinstance(value, dict):
        raise RowFailure(400, f"An observation is a map, and this is a value of type {type(value).__name__}.")


def dtype_of(name: Any) -> np.dtype[Any]:
    """Return the type of a name of numpy's that a client has sent. Raises ValueError: policies get no such arrays."""
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise ValueError(
            f"arrays of {str(name)[:40]!a} are not taken: numbers, truth values, dates and texts are, objects never"
        )
    return np.dtype(name)


def array_of(data: Any, dtype: np.dtype[Any], shape: Any) -> np.ndarray[Any, Any]:
    """Return bytes as an array that reads them where they are. Raises ValueError: there are more bytes, or fewer."""
    array = client_array(data, dtype, shape)
    if array.nbytes != len(data):
        raise ValueError(f"an array of {dtype} with the shape {shown(array.shape)} has not {len(data)} bytes")
    return array


def plain_array(value: Any) -> np.ndarray[Any, Any] | np.generic:
    """Return a value of a policy's answer, a tensor perhaps, as numpy's. Raises TypeError: it has no form."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from ts.jobs.device_copies import to_numpy

        value = to_numpy(value)
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"no form for a value of type {type(value).__name__}")
    if not _DTYPE.fullmatch(value.dtype.str):
        raise TypeError(f"no form for arrays of {value.dtype}")
    return value


def packed(row: Row, actions: Any, answer: Any, plain: Callable[[Any], Any]) -> Buffer:
    """Return the body for a policy's actions: an answer with them.

    ``plain`` returns what stands for a value that msgpack does not know, or raises TypeError. Raises RowFailure: the
    handler chose an error's status; HandlerFailed: the actions are no dict, or msgpack cannot write them.
    """
    status = row.get_response_status_code()
    if status is not None and status >= 400:
        raise RowFailure(status, actions if isinstance(actions, str) else str(actions))
    if not isinstance(actions, dict):
        raise HandlerFailed(f"A policy answers with a dict, and this one has returned a {type(actions).__name__}.")
    try:
        return bytes(msgpack.packb(answer, default=plain))
    except (TypeError, ValueError, OverflowError) as error:
        raise HandlerFailed(f"The answer of the policy cannot be written: {error}") from error
