"""Who may use the server: what endpoints ask of the plugin that knows."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence

    from torchserve_py.base.settings.addresses import Address
    from torchserve_py.base.settings.table import Settings
    from torchserve_py.core.jobs.job_observer import Account
    from torchserve_py.endpoints.credentials import Credential, HeldCredentials, SentKey
    from torchserve_py.net.http1.request import Request

#: The file with the keys that the server has made, in its folder.
KEY_FILE: Final = "key_file.json"


class TokenType(StrEnum):
    """The API that a key opens."""

    management = "management"
    inference = "inference"


class Authorization(Protocol):
    """The keys of a running server, while token authorization is on."""

    #: What its credentials hold open.
    held: HeldCredentials

    def admit(self, kind: TokenType, key: SentKey, model: str | None = None) -> Credential:
        """Return what the key of a request to an API, and to a model if it names one, allows.

        Raises EndpointError: there is no key, it is wrong, or it is for something else.
        """

    def accounts(self) -> Iterable[Account]:
        """Return the accounts of the keys for inference, of those that have one."""

    def rotate(self, kind: str, key: SentKey) -> None:
        """Replace a key by a new one. Raises EndpointError: ``key`` may not, or there is no such key."""

    def close(self) -> None:
        """Delete what is of no use once the server has ended."""


class Guard(Protocol):
    """Checks the requests of a listener without keys."""

    def check(self, request: Request) -> None:
        """Raises EndpointError: the request is refused."""


class Protection(NamedTuple):
    """What protects listeners.

    Attributes:
        encryption: Returns what encrypts the connections to these hosts. Raises OSError: the settings name a key or a
            certificate that cannot be used.
        guard: Returns what checks the requests of a listener without keys.
    """

    encryption: Callable[[Settings, Sequence[str]], ssl.SSLContext]
    guard: Callable[[Settings, Address], Guard]
