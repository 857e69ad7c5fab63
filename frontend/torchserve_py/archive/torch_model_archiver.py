"""The command `torch-model-archiver`: the flags of TorchServe's, and their meaning."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torchserve_py.archive import archiver_command
from torchserve_py.archive.handler_name import BUILT_IN_HANDLERS
from torchserve_py.archive.manifest import RUNTIMES
from torchserve_py.archive.pack import SUFFIXES, PackOptions, pack

_FLAGS: tuple[tuple[tuple[str, ...], dict[str, object]], ...] = (
    (("--model-name",), {"required": True, "help": "name of the model, and of the archive: <model-name>.mar"}),
    (
        ("--handler",),
        {
            "help": "a Python file (.py may be left out), <file>:<function>, or a built-in handler:\n"
            + " ".join(BUILT_IN_HANDLERS)
            + "\nleft out for a Truss and for an MLServer model, whose folder is given with --extra-files",
        },
    ),
    (("-v", "--version"), {"required": True, "help": "version of the model"}),
    (
        ("--serialized-file",),
        {"help": "weights: a .pt or .pth file with a state_dict (eager mode), a TorchScript module, or an .onnx file"},
    ),
    (
        ("--model-file",),
        {"help": "Python file with the model's class, for eager mode: exactly one class derived from torch.nn.Module"},
    ),
    (
        ("--extra-files",),
        {"help": "comma-separated files, wildcards and folders; the contents of a folder go to the archive's root"},
    ),
    (
        ("--runtime",),
        {"choices": RUNTIMES, "default": RUNTIMES[0], "help": "language of the handler (default: python)"},
    ),
    (
        ("--export-path",),
        {"default": ".", "help": "where the archive is written (default: the current folder); made if missing"},
    ),
    (
        ("--archive-format",),
        {
            "choices": tuple(SUFFIXES),
            "default": "default",
            "help": "default:    <model-name>.mar, a compressed ZIP\n"
            "zip-store:  <model-name>.mar, not compressed: quick to write\n"
            "tgz:        <model-name>.tar.gz\n"
            "no-archive: the folder <model-name>",
        },
    ),
    (("-f", "--force"), {"action": "store_true", "help": "overwrite an archive that exists"}),
    (("-r", "--requirements-file"), {"help": "requirements.txt with the Python packages that the model needs"}),
    (("-c", "--config-file"), {"help": "model-config.yaml with the model's settings, such as batchSize"}),
)


def parse_options(arguments: Sequence[str] | None = None) -> PackOptions:
    """Read the command line, `sys.argv` when None. Bad usage prints what is wrong and exits with status 2."""
    parser = argparse.ArgumentParser(
        prog="torch-model-archiver",
        description="Pack a model and its handler into an archive that the model server loads.",
        formatter_class=argparse.RawTextHelpFormatter,
    )
    for names, settings in _FLAGS:
        parser.add_argument(*names, **settings)  # type: ignore[arg-type]
    options = PackOptions(**vars(parser.parse_args(arguments)))
    if options.handler is None and not options.extra_files:
        parser.error("the following arguments are required: --handler")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack what the command line asks for. Returns the exit status: 0, or 1 after printing what was wrong."""
    options = parse_options(arguments)
    return archiver_command.run(lambda: pack(options), f"model {options.model_name}")


if __name__ == "__main__":
    sys.exit(main())
