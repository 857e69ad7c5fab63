"""What a script for SageMaker can do, and the files by which it is told."""

from typing import Final

from torchserve_py.core.archive.contract import Contract
from ts.contracts.sagemaker.script_name import script_name

#: The folder of the script in a model's folder.
CODE: Final = "code"


def told_by(program: str) -> tuple[str, ...]:
    """Return the paths at which a script with that name may be, the usual one first."""
    return f"{CODE}/{program}.py", f"{program}.py"


_FILES: Final = told_by(script_name())
SAGEMAKER: Final = Contract(
    name="sagemaker",
    platform="pytorch_sagemaker",
    file=_FILES[0],
    other_files=_FILES[1:],
    without_code=True,
    unless_handler=True,
    unless_default_handler=True,
    batches=True,
)
