"""Where journals are, how long they stay, and what is done to records before they are written."""

from pathlib import Path
from typing import Annotated

from torchserve_py.base.settings import value_kinds as kinds
from torchserve_py.base.settings.schemas.values import Parsed
from torchserve_py.base.settings.table import Bytes, Number, OptionalPath, SettingsSection, setting


def _hook(text: str, _: Path) -> str:
    module, colon, function = text.strip().partition(":")
    if not (colon and function.isidentifier() and all(each.isidentifier() for each in module.split("."))):
        raise ValueError
    return text.strip()


_HOOK = Parsed("MODULE:FUNCTION, such as redaction:redact", _hook)


class JournalSettings(SettingsSection):
    """Where journals are, how long they stay, and what is done to records before they are written."""

    journal_folder: OptionalPath = setting(
        None, "folder of the [journals](journal.md)", "`journal` in the folder of the logs"
    )
    journal_keep_hours: Number = setting(168, "hours that a file of a journal is kept")
    journal_keep_bytes: Bytes = setting(
        10 << 30, "size of one version's journal; beyond it the oldest files are removed", "10 GiB"
    )
    journal_redact: Annotated[str | None, _HOOK] = setting(
        None, "function that [changes each record](journal.md#settings) before it is written"
    )
    journal_key_file: Annotated[Path | None, kinds.PATH] = setting(
        None, "file with the key (32 bytes in Base64) that encrypts journals", "none: they are not"
    )
