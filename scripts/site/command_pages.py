"""MkDocs hook: a page with the help of every command, as its parser prints it."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

PAGE = "api/commands.md"
#: Columns of a line of help.
_WIDTH = 100


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the page."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, PAGE, content="\n".join(page())))
    return files


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    from torchserve_py.apis.workflows import torch_workflow_archiver
    from torchserve_py.archives.archiver import torch_model_archiver
    from torchserve_py.base.settings.flags import flags_parser
    from torchserve_py.plugins import plugins

    modules = sorted((name, module) for plugin in plugins() for name, module in plugin.commands.items())
    yield "# Commands\n"
    yield "What `--help` prints. `torchserve` is another name of `torchserve-py`.\n"
    for parser in (flags_parser(), *(importlib.import_module(module).parser() for _, module in modules)):
        yield from _command(parser)
    for archiver in (torch_model_archiver, torch_workflow_archiver):
        yield from _command(archiver.command_parser())


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=_WIDTH)
    yield f"## `{parser.prog}`\n"
    yield f"```text\n{parser.format_help()}```\n"
