"""Where the servers of a fleet keep what they serve."""

from pathlib import Path
from typing import Annotated, Final

from torchserve_py.features.redis.redis_url import redis_url_problem
from torchserve_py.settings.schemas.values import Parsed
from torchserve_py.settings.table import SettingsSection, setting


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


class FleetSettings(SettingsSection):
    """Where the servers of a fleet keep what they serve."""

    fleet_state: Annotated[str | None, _PLACE] = setting(
        None, "folder or Redis by which the servers of a [fleet](fleet.md) serve the same models", repr=False
    )
