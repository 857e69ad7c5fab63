"""Where the servers of a fleet keep what they serve."""

import re
from pathlib import Path
from typing import Annotated, Final

from torchserve_py.base.settings.schemas.values import Parsed
from torchserve_py.base.settings.table import SettingsSection, setting
from torchserve_py.sequences.redis.redis_url import redis_url_problem


def _place(text: str, base: Path) -> str:
    text = text.strip()
    if not text:
        raise ValueError
    if "://" not in text:
        return str(base / text)
    if problem := redis_url_problem(text):
        raise ValueError(f"it {problem}")
    return text


_PLACE: Final = Parsed("a folder that all servers share, or the URL of a Redis database", _place)


def _name(text: str, base: Path) -> str:
    if not re.fullmatch(r"[\w.-]{1,100}", text) or text in {".", ".."}:
        raise ValueError
    return text


_NAME: Final = Parsed("a name of letters, digits, points, hyphens and underscores", _name)


class FleetSettings(SettingsSection):
    """Where the servers of a fleet keep what they serve."""

    fleet_state: Annotated[str | None, _PLACE] = setting(
        None, "where the servers of a [fleet](fleet.md) share what they serve", repr=False
    )
    fleet_name: Annotated[str | None, _NAME] = setting(
        None, "name of the fleet; fleets with one folder or database need different names"
    )
