"""The name of a script, which both the server and its workers need."""

import os
from typing import Final

PROGRAM_VARIABLE: Final = "SAGEMAKER_PROGRAM"
_DEFAULT_PROGRAM: Final = "inference.py"


def script_name() -> str:
    """Return the name of the script's module."""
    return os.environ.get(PROGRAM_VARIABLE, _DEFAULT_PROGRAM).rpartition("/")[2].removesuffix(".py")
