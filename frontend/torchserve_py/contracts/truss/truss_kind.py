"""What the code of a Truss can do, and the file by which it is told."""

from typing import Final

from torchserve_py.core.archive.contract import Contract

TRUSS: Final = Contract(
    name="truss",
    platform="python_truss",
    file="config.yaml",
    unless_handler=True,
    own_keys=frozenset({"truss"}),
    own_health=True,
    truss_api=True,
    packages=("starlette", "fastapi", "pydantic"),
    external_packages=True,
)
