"""The settings that say how workers are confined."""

from typing import Annotated

from torchserve_py.base.settings.schemas.values import MAX_LONG, integer
from torchserve_py.base.settings.table import OptionalName, SettingsSection, setting


class ConfinementSettings(SettingsSection):
    """As whom workers run, and with how much memory."""

    worker_user: OptionalName = setting(
        None, "user of the workers; the server must be started by root", "the server's own"
    )
    worker_memory_limit: Annotated[int | None, integer(64, MAX_LONG, "megabytes")] = setting(
        None, "memory that each process of a worker may allocate (Linux)", "unlimited"
    )
