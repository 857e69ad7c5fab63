"""The sequence that the headers of a request name.

Header names match in any case, as in HTTP. The handler gets the names as they are configured, even if the client's
library changed their case.
"""

import re
import uuid
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from torchserve_py.base.settings.table import Settings
from torchserve_py.core.jobs.call import SequenceRequest
from torchserve_py.endpoints.failures import EndpointError, Failure, bad_request
from torchserve_py.net.http1.parser import Headers, RepeatedHeaders
from ts.protocol.messages import REQUEST_ID, SEQUENCE_ID_SEPARATOR, SEQUENCE_TOKEN, STEP_NUMBER

#: What a marker may say, in any case; an empty header is not a marker.
_MARKERS: Final = {"true": True, "1": True, "false": False, "0": False, "": False}
#: Characters of the id of a sequence or of a request; the server keeps ids as long as the sequence is open.
MAX_ID_LENGTH: Final = 1000
MAX_TOKEN_LENGTH: Final = 200
#: Of how many sequences it is kept what a step says that has nothing but their id.
_KEPT_IDS: Final = 1024
#: The beginning of the ids of live sessions' sequences.
LIVE_ID_PREFIX: Final = "live-"
#: The greatest number of a step: numbers have 64 bits, one of them for the sign.
MAX_STEP: Final = 2**63 - 1
#: SageMaker's header for the id of a session, and the id that asks for a new one.
SESSION_ID: Final = "X-Amzn-SageMaker-Session-Id"
NEW_SESSION: Final = "NEW_SESSION"
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")

#: Whether a sequence starts or ends, in a word or as a truth value; None if the request does not say.
Marker = str | bool | None


class StepClaim(NamedTuple):
    """What a client says of which step of a sequence a request is, as text; None for what it does not say."""

    request_id: str | None
    number: str | None
    token: str | None


NO_CLAIM: Final = StepClaim(None, None, None)
#: The headers that a claim is read from.
CLAIM_NAMES: Final = (REQUEST_ID, STEP_NUMBER, SEQUENCE_TOKEN)


def claim_of(sent: Mapping[str, str]) -> StepClaim:
    """Return what the headers of a request say of which step it is."""
    return StepClaim(sent.get(REQUEST_ID), sent.get(STEP_NUMBER), sent.get(SEQUENCE_TOKEN))


def claim_within(said: StepClaim, sent: StepClaim) -> StepClaim:
    """Return what a request says within itself of which step it is, and where it says nothing, what its headers say.

    Raises EndpointError: the two differ.
    """
    if sent == NO_CLAIM:
        return said
    both = [*zip(said, sent, strict=True)]
    for name, pair in zip(CLAIM_NAMES, both, strict=True):
        check_once(name, [each for each in pair if each is not None])
    return StepClaim(*(inner if inner is not None else outer for inner, outer in both))


class SequenceHeaders:
    """Reads the three configured headers."""

    def __init__(self, settings: Settings) -> None:
        self.id_name: str = settings.ts_header_key_sequence_id
        self._start: str = settings.ts_header_key_sequence_start
        self.end_name: str = settings.ts_header_key_sequence_end
        self._asks_for_new = NEW_SESSION if self.id_name.lower() == SESSION_ID.lower() else ""
        self._id_key = self.id_name.lower().encode()
        #: For what a new id is made up each time; all others say the same in each step of a sequence.
        self._made_up = frozenset((b"", self._asks_for_new.encode()))
        self._of_id = lru_cache(maxsize=_KEPT_IDS)(self._read_id)
        #: The headers that say more than the id; the same as the parser has them.
        self.more_names = (self._start, self.end_name, *CLAIM_NAMES)
        self._says_more = frozenset(name.lower().encode() for name in self.more_names)

    def of(self, sent: Mapping[str, str]) -> SequenceRequest:
        """Return the sequence that the headers of a request, or the metadata of a gRPC call, name, as `of_values`."""
        if type(sent) is Headers:
            if self._says_more.isdisjoint(sent.raw):
                named = sent.raw.get(self._id_key, b"")
                return self._read_id(named) if named in self._made_up else self._of_id(named)
        elif isinstance(sent, RepeatedHeaders):
            check_headers_once(sent, (self.id_name, *self.more_names))
        return self.of_values(
            sent.get(self.id_name, ""), sent.get(self._start), sent.get(self.end_name), claim_of(sent)
        )

    def _read_id(self, sent: bytes) -> SequenceRequest:
        """Return the sequence of a request that says nothing but its id."""
        return self.of_values(sent.decode("utf-8", "surrogateescape"), None, None)

    def of_values(self, sequence_id: str, start: Marker, end: Marker, claim: StepClaim = NO_CLAIM) -> SequenceRequest:
        """Return the sequence of a request with these values of the three headers, and what says which step it is.

        A request without an id (or with an empty one) opens a sequence of its own, ``ts-seq-<uuid4>``; so does
        ``NEW_SESSION`` where the header is SageMaker's. Raises EndpointError: an id, a token or a number is not usable
        or comes without an id, a marker is neither true nor false, or a step after the first has the start marker.
        """
        if sequence_id.startswith(LIVE_ID_PREFIX) and (claim.token is None or start is not None):
            message = (
                f"{sequence_id!a} is the id of a live session. Its steps come over that session,"
                f" or with its token in {SEQUENCE_TOKEN} and without a start marker."
            )
            raise EndpointError(Failure(403, "ForbiddenException", message))
        return self._checked(sequence_id, start, end, claim)

    def _checked(self, sequence_id: str, start: Marker, end: Marker, claim: StepClaim) -> SequenceRequest:
        request_id, number, token = claim
        is_made_up = False
        if len(sequence_id) > MAX_ID_LENGTH:
            raise _too_long(self.id_name, sequence_id)
        if request_id and len(request_id) > MAX_ID_LENGTH:
            raise _too_long(REQUEST_ID, request_id)
        if sequence_id in ("", self._asks_for_new):
            is_marked(f"Header {self._start}", start)
            if number is not None or token is not None:  # of a sequence of its own each copy would be another step
                named = f"a request with {SEQUENCE_TOKEN}" if number is None else f"step {_step_number(number)}"
                raise bad_request(
                    f"Header {self.id_name} is missing: {named} belongs to a sequence, so name it, also in its first"
                    " request (gRPC: sequence_id)."
                )
            sequence_id, start, is_made_up = f"ts-seq-{uuid.uuid4()}", True, True
        elif not sequence_id.isprintable() and _UNUSABLE.search(sequence_id):
            raise bad_request(
                f"Header {self.id_name}: {sequence_id!a} is not a sequence id; use printable characters in UTF-8."
            )
        elif SEQUENCE_ID_SEPARATOR in sequence_id or sequence_id != sequence_id.strip():
            # A handler that ends this sequence would end the sequences whose ids are the pieces of this id.
            raise bad_request(
                f"Header {self.id_name}: {sequence_id!a} is not a sequence id; it must not hold"
                f" {SEQUENCE_ID_SEPARATOR!r}, which separates ids, and neither begin nor end with a space."
            )
        pair = self.id_name, sequence_id
        if start is end is request_id is number is token is None:
            return SequenceRequest(sequence_id, False, False, (pair,))
        headers = [pair]
        starts, ends = is_marked(f"Header {self._start}", start), is_marked(f"Header {self.end_name}", end)
        for name, marker, is_set in ((self._start, start, starts), (self.end_name, end, ends)):
            if marker is not None:
                headers.append((name, "true" if is_set else "false"))  # the words that TorchServe's handlers know
        if request_id:
            if _UNUSABLE.search(request_id):
                raise bad_request(
                    f"Header {REQUEST_ID}: {request_id!a} is not an id; use printable characters in UTF-8."
                )
            headers.append((REQUEST_ID, request_id))
        step = None if number is None else _step_number(number)
        if step is not None:
            headers.append((STEP_NUMBER, str(step)))
            if starts and step > 1:
                raise bad_request(f"Header {STEP_NUMBER}: {step} has the start marker, which only step 1 can have.")
        if token is not None:
            if not 0 < len(token) <= MAX_TOKEN_LENGTH or _UNUSABLE.search(token):
                shown = token[:MAX_TOKEN_LENGTH]
                raise bad_request(
                    f"Header {SEQUENCE_TOKEN}: {shown!a} is not a token; use 1 to {MAX_TOKEN_LENGTH} printable"
                    " characters, such as a UUID."
                )
            headers.append((SEQUENCE_TOKEN, token))
        return SequenceRequest(sequence_id, starts, ends, tuple(headers), step, token, is_made_up)

    def of_step(
        self, sequence_id: str, starts: bool, ends: bool, number: int, token: str | None, ids: str = ""
    ) -> SequenceRequest:
        """Return the sequence of a step of a session; without a token, ``ids`` and the number are the request's id."""
        claim = StepClaim(f"{ids}{number}", None, None) if token is None else StepClaim(None, str(number), token)
        return self._checked(sequence_id, starts or None, ends or None, claim)


def _too_long(name: str, given: str) -> EndpointError:
    return bad_request(f"Header {name}: an id has up to {MAX_ID_LENGTH} characters, this one {len(given)}.")


def _step_number(text: str) -> int:
    """Return the number of a step. Raises EndpointError: the text is not a number."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_STEP)) and 0 < int(text) <= MAX_STEP):
        shown = text if len(text) <= 40 else f"{text[:40]}…"
        raise bad_request(
            f"Header {STEP_NUMBER}: {shown!a} is not the number of a step; steps are numbered from 1, up to {MAX_STEP}."
        )
    return int(text)


def check_headers_once(sent: Mapping[str, str], names: Iterable[str]) -> None:
    """Check that headers of a request that have these names say one thing each, as `check_once` does."""
    if isinstance(sent, RepeatedHeaders):
        for name in names:
            check_once(name, sent.values_of(name))


def check_metadata_once(sent: Iterable[tuple[str, str | bytes]], names: Iterable[str]) -> None:
    """Check that metadata of a gRPC call that have these names say one thing each, as `check_once` does."""
    for each in names:
        check_once(each, [value for name, value in sent if name == each])


def check_once(name: str, values: Iterable[str | bytes]) -> None:
    """Check that a header says one thing. Raises EndpointError: its values differ."""
    different = [f"{value!a:.200}" for value in dict.fromkeys(values)]
    if len(different) > 1:
        raise bad_request(f"Header {name} is given more than once, as {' and '.join(different)}; give it one value.")


def is_marked(place: str, value: Any) -> bool:
    """Return whether the marker is set that stands at ``place``; None means no marker.

    Raises EndpointError: the value is neither a truth value nor a word for one.
    """
    if value is None or isinstance(value, bool):
        return bool(value)
    meaning = _MARKERS.get(value.strip().lower()) if isinstance(value, str) else None
    if meaning is None:
        raise bad_request(f"{place}: {value!a} is neither true nor false; use true or false, 1 or 0, or leave it out.")
    return meaning
