"""The flags of the command line: those of settings, which follow from the table, and those that say what to do.

The flag of a setting is stored under the setting's name, as text (None where it was not given): the schema reads it.
"""

import argparse
import importlib
import re
from collections.abc import Sequence
from typing import Final

from torchserve_py.base.settings.schemas.values import FLAG
from torchserve_py.base.settings.server_settings import server_settings, sources
from torchserve_py.base.settings.table import Source
from torchserve_py.base.settings.value_kinds import MODELS
from torchserve_py.plugins import plugins

#: Flags that configure the Java virtual machine or the C++ backend of TorchServe: attribute -> flag.
JVM_FLAGS = {"cpp_log_config": "--cpp-log-config", "plugins_path": "--plugins-path"}
#: The files whose schemas no plugin offers, as `--schema` calls them.
OWN_SCHEMAS: Final = ("config.properties", "model-config")
#: A link of Markdown, as descriptions of settings have it for the documents.
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")


class Flags(argparse.Namespace):
    """A parsed command line; the flag of a setting is an attribute with the setting's name."""

    version: bool
    stop: bool
    foreground: bool
    print_config: bool
    check_config: bool
    schema: str | None
    ts_config: str | None
    log_config: str | None
    cpp_log_config: str | None
    plugins_path: str | None
    no_config_snapshots: str | None


def parse_flags(argv: Sequence[str]) -> Flags:
    """Parse ``argv`` (without the program's name); prints usage and exits with 2 when it is wrong, as argparse does."""
    return flags_parser().parse_args(argv, namespace=Flags())


def flags_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    parser = _Parser(prog="torchserve-py", description="Serve PyTorch models.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("-v", "--version", action="store_true", help="print the version")
    action.add_argument("--start", action="store_true", help="start the server (what happens without any flag, too)")
    action.add_argument(
        "--stop", action="store_true", help="stop the server and wait until accepted requests are answered"
    )
    _add_reports(parser)
    parser.add_argument("--foreground", action="store_true", help="stay until the server exits")
    parser.add_argument("--ts-config", metavar="FILE", help="config.properties; TS_CONFIG_FILE takes precedence")
    for name, source in sources().items():
        if source.flag is not None:
            _add_setting(parser, name, source, source.flag)
    parser.add_argument("--cpp-log-config", metavar="FILE", help="no effect (C++ backend of TorchServe)")
    parser.add_argument("--plugins-path", "--ppath", metavar="DIR", help="no effect (Java plugins of TorchServe)")
    return parser


class _Parser(argparse.ArgumentParser):
    """Shows the commands beside the flags, too; their modules are imported only for that."""

    def format_help(self) -> str:
        commands = [(name, module) for plugin in plugins() for name, module in plugin.commands.items()]
        width = max(len(name) for name, _ in commands) + 2
        lines = [f"  {name:{width}}{_first_sentence(module)}" for name, module in sorted(commands)]
        return "\n".join([super().format_help(), "commands, each with its own --help:", *lines, ""])


def _first_sentence(module: str) -> str:
    """Return what a command does, from the description of its parser."""
    description: str = importlib.import_module(module).parser().description
    return description.partition(". ")[0].removesuffix(".")


def _add_reports(parser: argparse.ArgumentParser) -> None:
    """Add the flags that print something about what is configured, and start nothing."""
    meaning = "print every setting and where its value comes from, start nothing"
    parser.add_argument("--print-config", action="store_true", help=meaning)
    what = "what of the configuration and the model store is ignored, wrong or different here"
    parser.add_argument("--check-config", action="store_true", help=f"report {what}, start nothing")
    schemas = (*OWN_SCHEMAS, *(name for each in plugins() for name in each.schemas))
    meaning = f"print the JSON Schema of a file, for editors, start nothing: {', '.join(schemas)}"
    parser.add_argument("--schema", choices=schemas, metavar="NAME", help=meaning)


def _add_setting(parser: argparse.ArgumentParser, name: str, source: Source, flag: str) -> None:
    names = (flag,) if source.short is None else (flag, source.short)
    meaning = _LINK.sub(r"\1", server_settings().model_fields[name].description or "").replace("`", "")
    if source.kind is FLAG:
        parser.add_argument(*names, dest=name, action="store_const", const="true", help=meaning)
    else:
        several = "+" if source.kind is MODELS else None
        parser.add_argument(*names, dest=name, nargs=several, metavar=source.metavar, help=meaning)
