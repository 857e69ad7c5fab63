"""One inference request, as doors submit it, with everything that its job needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from torchserve_py.jobs.job_observer import Account


#: The header by which a request names its version although its path names none, for testers.
VERSION_HEADER: Final = "x-model-version"
#: The header whose value decides for requests without a sequence, so that a user gets the same version each time.
USER_HEADER: Final = "x-user-id"


class SequenceRequest(NamedTuple):
    """The sequence that a request belongs to."""

    id: str  # its id, generated if the client named none
    starts: bool  # whether a sequence that has ended may be opened again
    ends: bool  # whether the sequence ends with this request
    headers: tuple[tuple[str, str], ...]  # the pairs that tell the handler so
    step: int | None = None  # the number of the request in the sequence, from 1, if the client says so
    token: str | None = None  # what names the sequence among all that have had its id, if the client says so
    is_made_up: bool = False  # whether the client named none


#: How a request comes to a model: from a client, a workflow, a function that calls it, or from the server itself.
Via = Literal["http", "grpc", "websocket", "workflow", "call", "server"]


@dataclass(slots=True)
class InferenceRequest:
    """One request. Once it is submitted, nobody changes it.

    A frozen dataclass or a named tuple would take twice as long to make, or more.
    """

    #: Pairs of name and value, ``bytes`` as received or ``str`` as set by the server; later ones win. Those of the
    #: sequence are among them.
    headers: Sequence[tuple[Any, Any]]
    body: Any  # the raw body, or the parameters as ``(name, content type, value)`` triples
    content_type: str | None = None  # the media type of a raw body
    #: The protocol that the body is in and the response is to be in, one of those that `ts.protocol.messages` names;
    #: None for TorchServe's own forms.
    protocol: str | None = None
    #: The sequence that it belongs to, if it names one; a model that keeps none ignores it.
    sequence: SequenceRequest | None = None
    #: Whether the client named no version; the request is counted under TorchServe's ``default`` then.
    by_default: bool = False
    #: Of the requests that wait, those with 1 go first, then those with 2 and so on, and those with 0 last.
    priority: int = 0
    #: How many seconds the request may wait for a worker, if its client has said so; the model's own limit holds as
    #: well.
    expires_in: float | None = None
    #: After how many seconds its client gives up, if it has said so: after that, running it is pointless.
    answer_in: float | None = None
    unbatched: bool = False  # whether the request must not share a batch and belongs to no sequence
    more_input: bool = False  # whether further inputs follow, by `torchserve_py.jobs.parts.Parts.send_input`
    #: How it has come, for the counts of outcomes.
    via: Via = "http"
    #: The address of the client, or its network, as far as it is known.
    client: str = ""
    #: The account of the client's key, if it has one; then its requests are those of the key.
    account: Account | None = None
    #: Method, target and route of a request that has come over HTTP.
    request_line: tuple[str, str, str] | None = None
    #: Whether the request must not run, but asks for the kept answer to an earlier one with its request id. Only for a
    #: model whose sequences are stored.
    only_ask: bool = False
