"""The key in a request's header, and the refusals of requests without a good one."""

from typing import Final

from torchserve_py.doors.failures import DoorError, Failure

#: How clients name the key; the second one is Baseten's and openpi's.
_SCHEMES: Final = ("Bearer", "Api-Key")
CHALLENGE: Final = "WWW-Authenticate"
#: The realm of the challenges.
_REALM: Final = 'Bearer realm="torchserve-py"'


def key_in(authorization: str | None) -> str:
    """Return the key in ``Bearer KEY`` or ``Api-Key KEY``; empty if there is none."""
    scheme, _, key = (authorization or "").partition(" ")
    return key if scheme in _SCHEMES else ""


def unauthorized(message: str, kind: str, *, given: bool) -> DoorError:
    """Return the refusal of a request whose key is missing or, if one was ``given``, wrong (RFC 6750)."""
    challenge = f'{_REALM}, error="invalid_token"' if given else _REALM
    return DoorError(Failure(401, kind, message, more_headers=((CHALLENGE, challenge),)))


def forbidden(message: str) -> DoorError:
    """Return the refusal of a request whose key is for something else."""
    challenge = f'{_REALM}, error="insufficient_scope"'
    return DoorError(Failure(403, "ForbiddenException", message, more_headers=((CHALLENGE, challenge),)))
