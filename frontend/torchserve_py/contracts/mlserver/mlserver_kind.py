"""What the code of a model of MLServer's can do, and the file by which it is told."""

from typing import Final

from torchserve_py.core.archive.contract import Contract

MLSERVER: Final = Contract(
    name="mlserver",
    platform="python_mlserver",
    file="model-settings.json",
    own_health=True,
    own_routes=True,
    parameters=True,
    packages=("mlserver",),
)
