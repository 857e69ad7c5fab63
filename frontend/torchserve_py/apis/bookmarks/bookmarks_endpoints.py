"""``/sequences/{model}/{id}`` of the management API: one stored sequence is shown, forked, goes back, and moves.

`Bookmarks` does what is asked for, in a thread. A live session has paths of the same form, for WebSockets.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from torchserve_py.apis.bookmarks.bookmark_counts import BookmarkCounts
from torchserve_py.apis.bookmarks.bookmarks import (
    Bookmarks,
    IdInUse,
    NoSuchSequence,
    UnreadableSequence,
    UnusableFile,
)
from torchserve_py.apis.bookmarks.model_store import place_of
from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Counter
from torchserve_py.base.settings.state_folders import StateFolders
from torchserve_py.endpoints.content_encodings import decompressed
from torchserve_py.endpoints.failures import INTERNAL, UNAVAILABLE, EndpointError, Failure, bad_request
from torchserve_py.endpoints.management.parameters import of_query
from torchserve_py.endpoints.openapi import BINARY, TEXT, Operation, Parameter
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import EndpointContext, Endpoints, PathValues, Route
from torchserve_py.endpoints.sequences import MAX_STEP, SequenceHeaders
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http1.request import Request
from ts.protocol.media_types import BYTES, JSON
from ts.sequences.steps.record import unpack_head
from ts.sequences.steps.server_identity import server_identity
from ts.sequences.steps.state_log import since_latest_state
from ts.sequences.steps.stores.earlier_step import NoStateThere, steps_with_state
from ts.sequences.steps.stores.maintenance import StoredSequence
from ts.sequences.steps.stores.store import StoreError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_PATH: Final = "/sequences/{model_name}/{sequence_id:path}"
#: The same of an id without a slash: it comes before the path of a live session, of which it is on a shared listener.
_SHORT: Final = "/sequences/{model_name}/{sequence_id}"
_CONFLICT: Final = "ConflictStatusException"
#: How many calls use stores at the same time: each has a thread, and a whole sequence in memory.
_AT_ONCE: Final = 4
_INTEGER: Final = {"type": "integer"}
_ENDS: Final = ("/fork", "/rewind", "/export", "/import")
_SLASHES: Final = re.compile(r"(?:%2F)+\Z", re.IGNORECASE)
_CHANGED: Final = {
    "type": "object",
    "required": ["modelName", "sequenceId", "modelVersion", "lastStep", "token"],
    "properties": {
        **dict.fromkeys(("modelName", "sequenceId", "modelVersion", "token"), TEXT),
        "lastStep": _INTEGER,
    },
}
_SHOWN: Final = {
    "type": "object",
    "required": ["modelName", "sequenceId", "modelVersion", "lastStep", "state", "stepsWithState", "heldBy"],
    "properties": {
        **dict.fromkeys(("modelName", "sequenceId", "modelVersion"), TEXT),
        "state": {"type": "string", "enum": ["open", "ended", "expired"]},
        "stepsWithState": {
            "type": "array",
            "items": {"type": "object", "properties": {"from": _INTEGER, "to": _INTEGER}},
        },
        "heldBy": {"type": "string", "enum": ["", "this server", "another server"]},
        **dict.fromkeys(("lastStep", "stateBytes", "logEntries", "logBytes", "earlierBytes", "keptAnswers"), _INTEGER),
        "secondsLeft": {"type": "number"},
    },
}
_SHOW: Final = Operation("showSequence", "Show a stored sequence", (200, 400, 404, 500, 501, 503), gives={JSON: _SHOWN})
_FORK: Final = Operation(
    "forkSequence",
    "Copy a stored sequence under another id; both go on by themselves",
    (200, 400, 403, 404, 409, 500, 501, 503),
    (
        Parameter("as", "The id of the copy; the server makes one up if there is none"),
        Parameter("step", "The step after which the copy goes on; otherwise the last one", "integer", least=1),
    ),
    gives={JSON: _CHANGED},
)
_REWIND: Final = Operation(
    "rewindSequence",
    "Let a stored sequence go on after an earlier step; later ones are undone",
    (200, 400, 404, 409, 500, 501, 503),
    (Parameter("step", "The step after which it goes on", "integer", required=True, least=1),),
    gives={JSON: _CHANGED},
)
_EXPORT: Final = Operation(
    "exportSequence",
    "Return a stored sequence as a file, as torchserve-py store export writes it",
    (200, 400, 404, 413, 500, 501, 503),
    gives=BINARY,
)
_IMPORT: Final = Operation(
    "importSequence",
    "Store the sequence in a file that was exported",
    (200, 400, 404, 409, 413, 500, 501, 503),
    (Parameter("replace", "Whether it takes the place of the one that is there", "boolean", default=False),),
    takes=BINARY,
    gives={JSON: _CHANGED},
    needs_body=True,
)


class BookmarksEndpoints(Endpoints):
    """Does with single sequences what an operator asks for."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._counts = context.shared(BookmarkCounts.of)
        self._headers = SequenceHeaders(self.settings)
        self._room = asyncio.Semaphore(_AT_ONCE)

    def routes(self) -> Iterator[Route]:
        for path, method, handler, operation in (
            (_SHORT, "GET", self._show, _SHOW),
            (_PATH, "GET", self._show, _SHOW),
            (f"{_PATH}/fork", "POST", self._fork, _FORK),
            (f"{_PATH}/rewind", "POST", self._rewind, _REWIND),
            (f"{_PATH}/export", "GET", self._export, _EXPORT),
            (f"{_PATH}/import", "PUT", self._import, _IMPORT),
        ):
            applies = _is_shown if path in {_SHORT, _PATH} else _is_done
            yield Route(path, handler, (method,), TokenType.management, operations=(operation,), applies=applies)

    async def _show(self, request: Request, values: PathValues) -> Answer:
        bookmarks, sequence_id = self._bookmarks(values), _whole_id(request, values)
        sequence, holder = await self._done({**values, "sequence_id": sequence_id}, lambda: bookmarks.show(sequence_id))
        present = since_latest_state(sequence.state, sequence.log)
        kept = sum(len(each.entries) for each in sequence.log) + len(sequence.state or b"")
        present_size = len(present.state or b"") + sum(len(each.entries) for each in present.log)
        return json_answer(
            {
                **_about(sequence),
                "state": "open" if not sequence.closed else "ended" if sequence.closed == "ended" else "expired",
                "stepsWithState": [{"from": run[0], "to": run[-1]} for run in steps_with_state(sequence)],
                "heldBy": "" if not holder else "this server" if holder == server_identity() else "another server",
                "stateBytes": len(present.state or b""),
                "logEntries": len(present.log),
                "logBytes": sum(len(each.entries) for each in present.log),
                "earlierBytes": kept - present_size,
                "keptAnswers": len(sequence.answers),
                "secondsLeft": round(sequence.time_left, 3),
            }
        )

    async def _fork(self, request: Request, values: PathValues) -> Answer:
        bookmarks, given = self._bookmarks(values), of_query(request, _FORK)
        step = _step(given)
        new_id = self._new_id(given.get("as", ""))
        made = await self._done(values, lambda: bookmarks.fork(values["sequence_id"], new_id, step), new_id)
        self._count(self._counts.forked, made)
        return _changed(made)

    async def _rewind(self, request: Request, values: PathValues) -> Answer:
        bookmarks, step = self._bookmarks(values), _step(of_query(request, _REWIND))
        if step is None:
            raise bad_request("Parameter step is required: the number of the step after which the sequence goes on.")
        made = await self._done(values, lambda: bookmarks.rewind(values["sequence_id"], step))
        self._count(self._counts.rewound, made)
        return _changed(made)

    async def _export(self, request: Request, values: PathValues) -> Answer:
        bookmarks = self._bookmarks(values)
        file = await self._done(values, lambda: bookmarks.exported(values["sequence_id"]))
        if len(file) > (most := self.settings.max_response_size):
            text = f"The export has {len(file)} bytes, more than max_response_size ({most} bytes): raise that, or use"
            raise EndpointError(Failure(413, "BadRequestException", f"{text} torchserve-py store export."))
        return Answer(200, file, (("content-type", BYTES),))

    async def _import(self, request: Request, values: PathValues) -> Answer:
        bookmarks, replace = self._bookmarks(values), of_query(request, _IMPORT).get("replace", False)
        sequence_id = values["sequence_id"]
        file = await decompressed(request, await request.read(self.max_body), self.max_body)
        do = bookmarks.imported
        made = await self._done(values, lambda: do(sequence_id, file, replace=replace), sequence_id)
        self._count(self._counts.imported, made)
        return _changed(made)

    def _new_id(self, given: str) -> str:
        """Return the id that a fork is to have. Raises EndpointError: no sequence can have it."""
        try:
            return self._headers.of_values(given, None, None).id
        except EndpointError as error:
            message = error.failure.message.replace(f"Header {self._headers.id_name}:", "Parameter as:")
            raise EndpointError(error.failure._replace(message=message)) from None

    def _bookmarks(self, values: PathValues) -> Bookmarks:
        model = self.serving.get(values["model_name"])
        return Bookmarks(model.name, place_of(model, StateFolders.of(self.settings)))

    async def _done(self, values: PathValues, do: Callable[[], T], new_id: str = "") -> T:
        """Do something in a thread; what fails becomes the answer."""
        named = f"sequence {values['sequence_id']!r} of model {values['model_name']}"
        try:
            async with self._room:
                return await asyncio.to_thread(do)
        except NoSuchSequence:
            text = f"There is no {named}: no step of it was applied, or it is forgotten."
            raise EndpointError(Failure(404, "SequenceNotFoundException", text)) from None
        except IdInUse:
            text = f"There is a sequence {new_id!r} of model {values['model_name']} already, or there was one"
            raise EndpointError(Failure(409, _CONFLICT, f"{text} that is over; choose another id.")) from None
        except NoStateThere as error:
            raise EndpointError(Failure(409, _CONFLICT, f"S{named[1:]}: {error}.")) from None
        except UnusableFile as error:
            raise bad_request(f"The body cannot be imported as {named}: {error}.") from None
        except UnreadableSequence as error:
            text = f"What the store has of {named} is damaged: {error}. See torchserve-py store repair."
            raise EndpointError(Failure(500, INTERNAL, text, "state_damaged")) from None
        except StoreError as error:
            logger.error("The store of %s cannot be used: %s", named, error)
            text = f"The store of {named} cannot be used now: {error}. If this was a change, see whether it was made."
            raise EndpointError(Failure(503, UNAVAILABLE, text, "sequence_store", overloaded=True)) from error

    def _count(self, family: Family[Counter], sequence: StoredSequence) -> None:
        family.child({"model_name": sequence.model}).inc()


def _path_of(request: Request) -> str:
    """Return the path as it was sent: a slash of an id is not one between segments there, if it is encoded."""
    return request.path.rstrip("/")


def _is_done(request: Request, values: PathValues) -> bool:
    """Whether a path ends in what is to be done, rather than in an id that does."""
    return _path_of(request).endswith(_ENDS)


def _is_shown(request: Request, values: PathValues) -> bool:
    """Whether a path is that of a sequence: it is neither a live session's nor a more specific one."""
    is_specific = values["sequence_id"].endswith(_ENDS) and _is_done(request, values)
    return request.headers.get("Upgrade") is None and not is_specific


def _whole_id(request: Request, values: PathValues) -> str:
    """Return the id at the end of a path, with the encoded slashes at its own end, which are no trailing ones."""
    path = _path_of(request)
    return values["sequence_id"] + unquote(path[len(_SLASHES.sub("", path)) :])


def _step(given: dict[str, Any]) -> int | None:
    """Return the number of a step that a call names, if it does. Raises EndpointError: no step can have it."""
    step: int | None = given.get("step")
    if step is not None and not 0 < step <= MAX_STEP:
        raise bad_request(f"Parameter step: {step} is no number of a step; they are numbered from 1.")
    return step


def _about(sequence: StoredSequence) -> dict[str, Any]:
    head = unpack_head(sequence.head)
    named = {"modelName": sequence.model, "sequenceId": sequence.sequence_id}
    return {**named, "modelVersion": head.version, "lastStep": head.last}


def _changed(sequence: StoredSequence) -> Answer:
    return json_answer({**_about(sequence), "token": unpack_head(sequence.head).token})
