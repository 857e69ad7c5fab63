"""Files that some settings need other settings to name, such as a certificate."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from torchserve_py.base.settings.table import Effective

#: The settings of a certificate and its key, in PEM.
PEM_FILES: Final = ("certificate_file", "private_key_file")


def missing_files(effective: Mapping[str, Effective], names: Sequence[str], why: str) -> Iterator[str]:
    """Yield a line for each of these settings that names no file; a wrong value is reported elsewhere."""
    for name in names:
        file = effective[name].value if name in effective else None
        if file is None:
            yield f"Invalid configuration: {name}: {why}"
        elif not file.is_file():
            yield f"Invalid configuration: {effective[name].origin}: {name} = {file}: no such file"
