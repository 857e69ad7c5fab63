"""The command `torch-model-archiver`: the flags of TorchServe's, and their meaning."""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from torchserve_py import shell_completion
from torchserve_py.archives.archiver.errors import PackError
from torchserve_py.archives.archiver.pack import SUFFIXES, PackOptions, pack
from torchserve_py.base.terminal import tell
from torchserve_py.core.archive.built_in_handlers import BUILT_IN_HANDLERS
from torchserve_py.core.archive.manifest import RUNTIMES

_FORMATS = """\
default:    <model-name>.mar, a compressed ZIP
zip-store:  <model-name>.mar, not compressed: quick to write
tgz:        <model-name>.tar.gz
no-archive: the folder <model-name>"""


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="torch-model-archiver",
        description="Pack a model and its handler into an archive that the model server loads.",
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = parser.add_argument
    add("--model-name", required=True, help="name of the model, and of the archive: <model-name>.mar")
    add(
        "--handler",
        help="a Python file (.py may be left out), <file>:<function>, or a built-in handler:\n"
        + " ".join(BUILT_IN_HANDLERS)
        + "\nleft out for a Truss and for an MLServer model, whose folder is given with --extra-files",
    )
    add("-v", "--version", required=True, help="version of the model")
    weights = "weights: a .pt or .pth file with a state_dict (eager mode), a TorchScript module, or an .onnx file"
    add("--serialized-file", help=weights)
    add(
        "--model-file",
        help="Python file with the model's class, for eager mode: exactly one class derived from torch.nn.Module",
    )
    add(
        "--extra-files",
        help="comma-separated files, wildcards and folders; the contents of a folder go to the archive's root",
    )
    add("--runtime", choices=RUNTIMES, default=RUNTIMES[0], help="language of the handler (default: python)")
    add(
        "--export-path", default=".", help="where the archive is written (default: the current folder); made if missing"
    )
    add("--archive-format", choices=tuple(SUFFIXES), default="default", help=_FORMATS)
    add("-f", "--force", action="store_true", help="overwrite an archive that exists")
    add("-r", "--requirements-file", help="requirements.txt with the Python packages that the model needs")
    add("-c", "--config-file", help="model-config.yaml with the model's settings, such as batchSize")
    return parser


def parse_options(arguments: Sequence[str] | None = None) -> PackOptions:
    """Read the command line, `sys.argv` when None. Bad usage prints what is wrong and exits with status 2."""
    parser = command_parser()
    shell_completion.offer(parser)
    options = PackOptions(**vars(parser.parse_args(arguments)))
    if options.handler is None and not options.extra_files:
        parser.error("the following arguments are required: --handler")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack what the command line asks for. Returns the exit status: 0, or 1 after printing what was wrong."""
    options = parse_options(arguments)
    return run(lambda: pack(options), f"model {options.model_name}")


def run(pack_archive: Callable[[], Path], content: str) -> int:
    """Pack an archive of ``content`` and print its path; return the exit status: 0, or 1 after printing the error."""
    logging.basicConfig(format="%(levelname)s - %(message)s")
    try:
        archive = pack_archive()
    except (PackError, OSError, ValueError) as error:
        tell(f"ERROR - {error}", to_stderr=True)
        return 1
    tell(f"Successfully exported {content} to file {archive}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
