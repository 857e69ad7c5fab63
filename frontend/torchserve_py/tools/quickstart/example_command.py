"""`torchserve-py example NAME …`: writes example models to `handlers/` of the current folder, as the pages use them.

With the name ``deploy`` it writes the files for Kubernetes, Prometheus and others to `deploy/`.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import torchserve_py
from torchserve_py.base.terminal import tell

_WRITTEN_TO: Final = Path("handlers")
_DEPLOY: Final = Path("deploy")
#: The image is built from a checkout.
_NOT_COPIED: Final = frozenset(("__pycache__", "Dockerfile", "container.properties"))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="torchserve-py example",
        description=f"Write example models to {_WRITTEN_TO}/ in this folder, or the files that deploy the server to"
        f" {_DEPLOY}/. A file that exists is never changed.",
    )
    parser.add_argument("names", nargs="+", choices=sorted(examples()), metavar="NAME", help=", ".join(examples()))
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    names = parser().parse_args(argv).names
    try:
        for name in names:
            tell(_write(name))
    except FileExistsError as error:
        tell(
            f"{error.filename} is there already with another content; rename it, or use another folder", to_stderr=True
        )
        return 1
    except OSError as error:
        tell(f"{error.filename}: {error.strerror}", to_stderr=True)
        return 1
    return 0


def examples() -> Mapping[str, Path]:
    """Return the folder of each example: in the installed package, else in the checkout that is used."""
    models = _folder("example_models", "handlers")
    found = {each.name: each for each in sorted(models.iterdir()) if each.is_dir() and each.name not in _NOT_COPIED}
    return {**found, _DEPLOY.name: _folder("deploy_files", "deploy")}


def _folder(installed: str, in_checkout: str) -> Path:
    package = Path(torchserve_py.__file__).parent
    return package / installed if (package / installed).is_dir() else package.parents[1] / in_checkout


def _write(name: str) -> str:
    """Write an example and return what was done.

    Raises:
        FileExistsError: A file is there already with another content; nothing has been written.
    """
    target = _DEPLOY if name == _DEPLOY.name else _WRITTEN_TO / name
    contents = {target / path: content for path, content in _files(examples()[name])}
    for path, content in contents.items():
        if path.exists() and path.read_bytes() != content:
            raise FileExistsError(None, None, str(path))
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return f"Written to {target}: {', '.join(str(path.relative_to(target)) for path in contents)}"


def _files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and _NOT_COPIED.isdisjoint(path.parts):
            yield path.relative_to(folder), path.read_bytes()
