"""Captum, which explanations need and predictions do not."""

from __future__ import annotations

from typing import Any

from ts.utils.optional_packages import missing_package
from ts.utils.util import PredictionException

_NOT_IMPLEMENTED = 501


def captum_attr() -> Any:
    """Return the module ``captum.attr``. It is imported for the first explanation: that takes seconds.

    Raises:
        PredictionException: Captum is not installed; the client gets status 501.
    """
    try:
        import captum.attr
    except ModuleNotFoundError as error:
        raise PredictionException(str(missing_package(error, "Explanations", "explain")), _NOT_IMPLEMENTED) from error
    return captum.attr
