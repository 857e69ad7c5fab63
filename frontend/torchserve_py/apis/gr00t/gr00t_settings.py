"""The settings of the port for GR00T's clients, which is closed unless it is set."""

from typing import Annotated

from torchserve_py.base.settings.schemas.values import integer
from torchserve_py.base.settings.table import Host, SettingsSection, setting


class Gr00tSettings(SettingsSection):
    """The settings of the port for GR00T's clients."""

    gr00t_address: Host = setting("127.0.0.1", "where the port for [GR00T's clients](live-sessions.md#gr00t) listens")
    gr00t_port: Annotated[int | None, integer(0, 65535)] = setting(
        None, "port for [GR00T's clients](live-sessions.md#gr00t), as 5555; needs the extra `gr00t`", "none"
    )
