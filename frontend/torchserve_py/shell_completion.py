"""Completion of the commands in bash, zsh and fish: the command itself is asked, and answers from its parser."""

import argparse
import os
from typing import Final

#: Set by the shell's function that `torchserve-py completion` prints.
_ASKED: Final = "_ARGCOMPLETE"


def is_asked() -> bool:
    """Whether this process is to complete a command line, and do nothing else."""
    return _ASKED in os.environ


def offer(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that completes a command line of this parser, and exit; do nothing if none does."""
    if is_asked():
        import argcomplete

        argcomplete.autocomplete(parser)
