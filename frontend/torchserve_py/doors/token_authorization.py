"""Who may use the server: what doors ask of the features that know."""

from enum import StrEnum
from typing import Final, Protocol

from torchserve_py.jobs.job_observer import Account
from torchserve_py.transport.http1.request import Request

#: The file with the keys that the server has made, in its folder.
KEY_FILE: Final = "key_file.json"


class TokenType(StrEnum):
    """The API that a key opens."""

    management = "management"
    inference = "inference"


class Authorization(Protocol):
    """The keys of a running server, while token authorization is on."""

    def check(self, kind: TokenType, authorization: str | None, model: str | None = None) -> None:
        """Check the header ``Authorization`` of a request to an API, and to a model if it is for one.

        Raises DoorError: there is no key, it is wrong, or it is for something else.
        """

    def check_model(self, authorization: str | None, model: str) -> Account | None:
        """Check that the key of a request, which was checked before, may use a model; return its account if it has one.

        Raises DoorError: it may not.
        """

    def rotate(self, kind: str, authorization: str | None) -> None:
        """Replace a key by a new one. Raises DoorError: ``authorization`` may not, or there is no such key."""

    def close(self) -> None:
        """Delete what is of no use once the server has ended."""


class Guard(Protocol):
    """Checks the requests of a listener without keys."""

    def check(self, request: Request) -> None:
        """Raises DoorError: the request is refused."""
