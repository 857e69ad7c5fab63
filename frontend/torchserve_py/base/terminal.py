"""What commands print: a terminal shows it, and obeys nothing in it.

Ids, paths, names, answers and messages come from clients and models. A control character in them would move the cursor,
change colours or write into the window's title, and a bidirectional one would show a text in another order than it has.
"""

import sys

from torchserve_py.base.logs.unfit_characters import fit_json


def visible(value: object) -> str:
    """Return a value as one line, in which escapes, as those of JSON, stand for what a terminal would obey."""
    return fit_json(str(value))


def tell(text: object, *, to_stderr: bool = False) -> None:
    """Print lines, in which escapes, as those of JSON, stand for what a terminal would obey."""
    lines = map(visible, str(text).split("\n"))
    # `print` writes the end of a line by itself, and another thread could write in between.
    print("\n".join(lines) + "\n", end="", file=sys.stderr if to_stderr else sys.stdout, flush=True)
