"""`torchserve-py key [inference|management]`: prints a key that the server in this folder has made."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from torchserve_py.base.terminal import tell
from torchserve_py.endpoints.token_authorization import KEY_FILE, TokenType
from torchserve_py.ops.keys.generated_keys import read_key


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="torchserve-py key",
        description="Print the key of a server that was started in this folder and was given no keys.",
    )
    parser.add_argument(
        "scope",
        nargs="?",
        choices=[each.value for each in TokenType],
        default=TokenType.inference.value,
        help="the API that the key opens, inference by default",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    scope = TokenType(parser().parse_args(argv).scope)
    try:
        tell(read_key(scope, Path(KEY_FILE)))
    except OSError as error:
        tell(f"{Path(KEY_FILE).absolute()}: {error.strerror}; no server with such keys runs here", to_stderr=True)
        return 1
    return 0
