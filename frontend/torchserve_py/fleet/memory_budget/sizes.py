"""Sizes of memory as people write them: ``2GB`` is 2,000,000,000 bytes, ``2GiB`` and Kubernetes' ``2Gi`` are 2^31."""

import re
from decimal import Decimal
from typing import Any, Final

from pydantic_core import core_schema

from torchserve_py.base.settings.schemas.values import MAX_LONG, Expected

_UNITS: Final = {
    **{"": 1, "b": 1},
    **{f"{letter}{end}": 1000**power for power, letter in enumerate("kmgt", 1) for end in ("b", "")},
    **{f"{letter}i{end}": 1024**power for power, letter in enumerate("kmgt", 1) for end in ("b", "")},
}
_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([a-z]*)")


def _bytes(value: Any) -> Any:
    """Return the bytes that a text stands for; what is none stays as it is, and is refused then."""
    if not isinstance(value, str) or (found := _SIZE.fullmatch(value.strip().lower())) is None:
        return value
    unit = _UNITS.get(found[2])
    return value if unit is None else int(Decimal(found[1]) * unit)


#: The kind of a size: a text, or a number of bytes.
SIZE: Final = Expected(
    "a size such as 800MB, 2GB or 1.5GiB",
    inner=core_schema.no_info_before_validator_function(_bytes, core_schema.int_schema(strict=True, ge=1, le=MAX_LONG)),
)


def shown(size: float) -> str:
    """Return a size for people to read, such as ``1.2 GB``."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 999.5 * unit else f"{size / unit:.0f} {name}"
    return f"{size:.0f} B"
