"""The command ``torchserve-py`` (also installed as ``torchserve``): TorchServe's flags, and commands beside them."""

import difflib
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from torchserve_py import shell_completion
from torchserve_py.base.terminal import tell
from torchserve_py.plugin_api import PluginUnavailable
from torchserve_py.plugins import plugins
from torchserve_py.version import TORCHSERVE_VERSION, __version__

_INTERRUPTED = 128 + signal.SIGINT
#: Exit code of a command line that argparse refuses, too.
_WRONG_USAGE: Final = 2
#: Exit code where a plugin of another package is broken.
_UNAVAILABLE: Final = 1
#: Exit code of a command whose reader has closed the pipe, as a shell gives it.
_PIPE_CLOSED = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; ``argv`` defaults to the arguments of this process."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except PluginUnavailable as error:
        tell(error, to_stderr=True)
        return _UNAVAILABLE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader, such as head, has what it wanted; Python must not flush what is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED


def _run(argv: Sequence[str]) -> int:
    if shell_completion.is_asked():
        _complete()
    if argv and not argv[0].startswith("-"):
        commands = _commands()
        if argv[0] in commands:
            return int(importlib.import_module(commands[argv[0]]).main(argv[1:]))
        tell(_no_command(argv[0], commands), to_stderr=True)
        return _WRONG_USAGE
    code = _obey(argv)
    if code and not argv:
        tell("torchserve-py serve PATH serves a model as it is; torchserve-py --help tells the flags", to_stderr=True)
    return code


def _obey(argv: Sequence[str]) -> int:
    """Do what the flags say."""
    from torchserve_py.base.settings.flags import parse_flags

    flags = parse_flags(argv)
    if flags.version:
        tell(f"TorchServe Version is {TORCHSERVE_VERSION}\ntorchserve-py {__version__}")
        return 0
    if flags.print_config:
        from torchserve_py.tools.operator_tools import print_config

        return print_config.print_report(flags)
    if flags.check_config:
        from torchserve_py.tools.operator_tools import check_config

        return check_config.print_report(flags)
    if flags.schema is not None:
        from torchserve_py.tools.operator_tools.json_schemas import schema_text

        tell(schema_text(flags.schema))
        return 0
    from torchserve_py.tools.daemon.server_launcher import ServerLauncher

    return ServerLauncher(argv).run()


def _commands() -> Mapping[str, str]:
    """Return the commands, each with its module, which is imported when it is called.

    It has the functions ``main(argv)`` and ``parser()``, and imports the server's settings, which take long, only when
    it needs them.
    """
    return {name: module for plugin in plugins() for name, module in plugin.commands.items()}


def _no_command(name: str, commands: Mapping[str, str]) -> str:
    meant = [f"serve {name}"] if Path(name).exists() else difflib.get_close_matches(name, commands, 1)
    hint = f"; did you mean torchserve-py {meant[0]}?" if meant else ""
    return (
        f"There is no command {name!r}: commands are {', '.join(commands)}; torchserve-py --help tells the flags{hint}"
    )


def _complete() -> None:
    """Answer a shell, from the parsers of all commands."""
    from torchserve_py.base.settings.flags import flags_parser

    parser = flags_parser()
    subparsers = parser.add_subparsers()
    for name, module in _commands().items():
        subparsers.add_parser(name, parents=[importlib.import_module(module).parser()], add_help=False)
    shell_completion.offer(parser)


if __name__ == "__main__":
    sys.exit(main())
