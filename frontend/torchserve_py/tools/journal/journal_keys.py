"""The key of `model-config.yaml` by which a model has a journal."""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import ClosedSchema, key
from torchserve_py.base.settings.schemas.values import Expected, Nested, integer, is_number
from torchserve_py.tools.journal.journal_record import SECRET_HEADERS

_SHARE: Final = Expected("a number above 0, at most 1", lambda value: is_number(value) and 0 < value <= 1)
#: A record is held in memory until it is written.
_MOST_BODY: Final = 16 << 20


def _are_no_secrets(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, str) and each.lower() not in SECRET_HEADERS for each in value
    )


_HEADERS: Final = Expected("a list of headers, not of a secret that is never written (a key, cookies)", _are_no_secrets)


def _switched(value: Any) -> Any:
    """Return the map that `on` stands for; None for `off`."""
    if isinstance(value, bool):
        return {} if value else None
    return value


class JournalConfig(ClosedSchema):
    """The `journal` map: what is written of a model's requests."""

    sample: Annotated[float, _SHARE] = key(
        "sample", "the share of requests that is written; a sequence is written as a whole or not at all", "1", 1.0
    )
    max_body: Annotated[int, integer(0, _MOST_BODY, "bytes")] = key(
        "maxBodyBytes", "how much is written of a body, and of an answer", "65,536", 65536
    )
    headers: Annotated[tuple[str, ...] | None, _HEADERS] = key(
        "headers", "headers of requests that are written as well, such as [x-tenant]"
    )


class JournalKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has one key."""

    journal: Annotated[
        JournalConfig | None, Nested("on, off, or a map, for example {sample: 0.1}"), BeforeValidator(_switched)
    ] = key("journal", "write requests and answers to a [journal](journal.md)", "`off`")
