"""How the files of this folder are run: ``python FILE URL FUNCTION …`` prints what each function has shown."""

import json
import sys
import traceback
from collections.abc import Mapping
from typing import Any


def run(functions: Mapping[str, Any]) -> None:
    """Print a JSON object: for each function that the command names, empty, or why it has not shown what it should."""
    print(json.dumps({name: _failure(functions[name]) for name in sys.argv[2:]}))


def _failure(function: Any) -> str:
    try:
        return "" if function() else "The client did not get what the script says."
    except Exception:
        return traceback.format_exc()
