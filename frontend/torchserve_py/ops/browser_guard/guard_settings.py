"""The setting that names a server without keys."""

from typing import Annotated

from torchserve_py.base.settings import value_kinds as kinds
from torchserve_py.base.settings.table import SettingsSection, Source, setting


class GuardSettings(SettingsSection):
    """How clients may name the server."""

    allowed_hosts: Annotated[tuple[str, ...], kinds.WORDS, Source(flag="--allowed-hosts", metavar="NAME[,NAME]")] = (
        setting(
            (),
            "names by which clients may ask for a [server without tokens](#access); `*`: any",
        )
    )
