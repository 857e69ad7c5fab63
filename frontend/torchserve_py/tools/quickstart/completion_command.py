"""`torchserve-py completion SHELL`: prints what makes a shell complete the commands of this package."""

import argparse
from collections.abc import Sequence
from typing import Final

from torchserve_py.base.terminal import tell

_COMMANDS: Final = ("torchserve-py", "torchserve", "torch-model-archiver", "torch-workflow-archiver")
_USAGE: Final = """\
bash:  torchserve-py completion bash > ~/.local/share/bash-completion/completions/torchserve-py
zsh:   echo 'eval "$(torchserve-py completion zsh)"' >> ~/.zshrc
fish:  torchserve-py completion fish > ~/.config/fish/completions/torchserve-py.fish"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="torchserve-py completion",
        description="Print the function with which a shell completes the commands.",
        epilog=_USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    from argcomplete.shell_integration import shellcode

    shell = parser().parse_args(argv).shell
    if shell == "fish":  # which has one function for each command
        tell("\n".join(shellcode([command], shell=shell) for command in _COMMANDS))
    else:
        tell(shellcode(_COMMANDS, shell=shell))
    return 0
