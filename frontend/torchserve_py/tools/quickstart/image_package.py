"""What pip installs into the image of a model: the wheel, the address or the version that this server came from.

pip records where a package came from (`direct_url.json`, PEP 610) unless that was an index.
"""

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from torchserve_py.version import __version__

NAME: Final = "torchserve-py"
_WHEEL: Final = f"torchserve_py-{__version__}-py3-none-any.whl"


class ImagePackage(NamedTuple):
    """What the Dockerfile installs.

    Attributes:
        requirement: An argument of `pip install`, run in the folder of the Dockerfile.
        wheel: The file to copy into that folder, if the requirement is a wheel that exists.
        source: What that wheel can be built from, if it does not exist yet and this is known: a checkout, or the
            address of a repository (the image has no git).
    """

    requirement: str
    wheel: Path | None = None
    source: str | None = None

    def what_is_missing(self, folder: Path) -> str | None:
        """Return what has to be done before the image in a folder can be built; None if nothing."""
        if self.wheel is not None or not self.requirement.startswith("./"):
            return None
        if self.source is None:
            return f"Before docker build, put {self.requirement.removeprefix('./')} into {folder}."
        build = ["python", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), self.source]
        return f"Before docker build, make the wheel that the image installs:\n  {shlex.join(build)}"


def named(package: str) -> ImagePackage:
    """Return the package that a user names: the file of a wheel, or an address or version that pip installs.

    Raises:
        ValueError: It is a path at which there is no wheel, or cannot stand in a Dockerfile.
    """
    path = Path(package)
    if path.suffix == ".whl" and path.is_file():
        return ImagePackage(f"./{path.name}", wheel=path)
    if "://" not in package and (path.suffix == ".whl" or "/" in package):
        raise ValueError(f"there is no wheel at {package}; `pip wheel --no-deps CHECKOUT` makes one")
    if package.startswith("git+"):
        raise ValueError(f"the image has no git; `pip wheel --no-deps {package}` makes a wheel")
    if not package or not package.isprintable() or set(package) & set("\"'\\$ "):
        raise ValueError(f"{package!r} is not a wheel, an address or a version, such as {NAME}=={__version__}")
    return ImagePackage(package)


def installed() -> ImagePackage:
    """Return the package that this server came from."""
    try:
        record = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:  # its sources are on Python's path
        return ImagePackage(f"./{_WHEEL}")
    if record is None:
        return ImagePackage(f"{NAME}=={__version__}")
    origin = json.loads(record)
    address = urlsplit(origin["url"])
    if repository := origin.get("vcs_info"):
        return ImagePackage(f"./{_WHEEL}", source=f"{repository['vcs']}+{origin['url']}@{repository['commit_id']}")
    if address.scheme != "file":
        return ImagePackage(origin["url"])
    path = Path(unquote(address.path))
    if path.suffix == ".whl" and path.is_file():
        return ImagePackage(f"./{path.name}", wheel=path)
    return ImagePackage(f"./{_WHEEL}", source=str(path) if path.is_dir() else None)
