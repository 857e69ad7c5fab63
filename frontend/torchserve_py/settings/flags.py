"""The flags of the command line, as TorchServe has them and a few of our own.

The flag of a setting is stored under the setting's name, as text; None where it was not given.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

#: Flags that configure the Java virtual machine or the C++ backend of TorchServe: attribute -> flag.
JVM_FLAGS = {"cpp_log_config": "--cpp-log-config", "plugins_path": "--plugins-path"}

#: The files whose schemas can be printed, see `torchserve_py.config_schemas`.
SCHEMA_NAMES = (
    "config.properties",
    "model-config",
    "metrics",
    "workflow",
    "truss",
    "mlserver-model",
    "mlserver-server",
)


class Flags(argparse.Namespace):
    """A parsed command line."""

    version: bool
    start: bool
    stop: bool
    print_config: bool
    check_config: bool
    schema: str | None
    foreground: bool
    ts_config: str | None
    log_config: str | None
    cpp_log_config: str | None
    plugins_path: str | None
    model_store: str | None
    workflow_store: str | None
    load_models: list[str] | None
    no_config_snapshots: str | None
    disable_token_authorization: str | None
    enable_model_api: str | None


def parse_flags(argv: Sequence[str]) -> Flags:
    """Parse ``argv`` (without the program's name); prints usage and exits with 2 when it is wrong, as argparse does."""
    return _parser().parse_args(argv, namespace=Flags())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchserve-py", description="Serve PyTorch models.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("-v", "--version", action="store_true", help="print the version")
    action.add_argument("--start", action="store_true", help="start the server (what happens without any flag, too)")
    action.add_argument(
        "--stop", action="store_true", help="stop the server and wait until accepted requests are answered"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print every setting and where its value comes from, start nothing"
    )
    parser.add_argument(
        "--check-config",
        action="store_true",
        help="report what of the configuration and the model store is ignored, wrong or different here, start nothing",
    )
    parser.add_argument(
        "--schema",
        choices=SCHEMA_NAMES,
        help="print the JSON Schema of a file, for editors that complete and check it, start nothing",
    )
    parser.add_argument("--foreground", action="store_true", help="stay until the server exits")
    parser.add_argument("--ts-config", metavar="FILE", help="config.properties; TS_CONFIG_FILE takes precedence")
    parser.add_argument("--model-store", metavar="DIR", help="directory of the model archives (mandatory)")
    parser.add_argument("--workflow-store", metavar="DIR", help="directory of the workflow archives")
    parser.add_argument(
        "--models",
        dest="load_models",
        nargs="+",
        metavar="MODEL",
        help="models to load: [name=]archive.mar, [name=]URL, [name=]directory, or all",
    )
    _add_switch(parser, "--no-config-snapshots", "--ncs", help_text="read and write no snapshots of the configuration")
    _add_switch(
        parser,
        "--disable-token-auth",
        "--dt",
        dest="disable_token_authorization",
        help_text="let requests in without a token",
    )
    _add_switch(parser, "--enable-model-api", help_text="allow to register and unregister models over the APIs")
    parser.add_argument(
        "--log-config", metavar="FILE", help="configuration of Python's logging, JSON or YAML (log4j2 has no effect)"
    )
    parser.add_argument("--cpp-log-config", metavar="FILE", help="no effect (C++ backend of TorchServe)")
    parser.add_argument("--plugins-path", "--ppath", metavar="DIR", help="no effect (Java plugins of TorchServe)")
    return parser


def _add_switch(parser: argparse.ArgumentParser, *names: str, help_text: str, dest: str | None = None) -> None:
    destination = dest or names[0].removeprefix("--").replace("-", "_")
    parser.add_argument(*names, dest=destination, action="store_const", const="true", help=help_text)
