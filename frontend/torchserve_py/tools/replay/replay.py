"""Sends the requests of a journal to a running server again, in order, and compares its answers with the recorded ones.

The steps of a sequence run in order, in a new sequence with an id of its own: those of the server's clients are not
touched. A request waits only for the steps before it, for room among those that are sent at once, and with a speed for
its time.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

import aiohttp
from yarl import URL

from torchserve_py.base.causes import Cause
from torchserve_py.base.settings.server_settings import KEY_VARIABLE
from torchserve_py.tools.journal.journal_record import JournalRecord
from torchserve_py.tools.journal.read_journal import JournalReader, RecordPlace
from torchserve_py.tools.replay.answer_documents import (
    NotComparable,
    recorded_bytes,
    recorded_documents,
    replayed_documents,
)
from torchserve_py.tools.replay.episode_sender import EpisodeSender
from torchserve_py.tools.replay.grpc_sender import GrpcSender
from torchserve_py.tools.replay.http_sender import HttpSender
from torchserve_py.tools.replay.recorded_outcomes import BROKEN_OFF, as_answered, ends_with_error
from torchserve_py.tools.replay.recorded_paths import RESPONSES, NotReplayable
from torchserve_py.tools.replay.replay_report import Difference, ReplayReport
from torchserve_py.tools.replay.replay_requests import ReplayRequest, request_of
from torchserve_py.tools.replay.senders import USER_AGENT, NoAnswer, NotConnected, ReplaySender, SentAnswer
from torchserve_py.tools.replay.sequence_names import SequenceNames
from torchserve_py.versions.traffic.answer_comparison import Comparison
from ts.apis.openai.openai_calls import FORK_HEADER
from ts.protocol.messages import OPEN_INFERENCE_GRPC, OPEN_INFERENCE_REST

#: The members of answers that tell one answer, or one server, from others.
_OPENAI: Final = "openai"
_OWN_MEMBERS: Final[Mapping[str, Sequence[str]]] = {
    OPEN_INFERENCE_REST: ("id", "model_version"),
    OPEN_INFERENCE_GRPC: ("id", "model_version"),
    _OPENAI: ("id", "created", "system_fingerprint"),
    RESPONSES: ("created_at", "completed_at", "response.created_at", "response.completed_at"),
}
#: Why a recorded request has not run. After any other cause nobody knows, so its sequence cannot be followed further.
_HAS_NOT_RUN: Final = frozenset(
    (
        *(Cause.no_worker, Cause.draining, Cause.queue_full, Cause.overloaded, Cause.sequence_queue_full),
        *(
            Cause.sequence_capacity,
            Cause.rate_limited,
            Cause.too_many_tokens,
            Cause.too_many_at_once,
            Cause.step_differs,
            Cause.step_gap,
        ),
    )
)
#: How often a request is sent if the server is full or not there, and the first pause between (seconds).
_TRIES: Final = 8
_FIRST_PAUSE: Final = 0.1
#: The statuses of answers to a look at a model that is not there, or with a key that is wrong or missing.
_KEY_REFUSED: Final = frozenset((401, 403))
_REFUSED: Final = _KEY_REFUSED | {400, 404}
_MOST_TOLD: Final = 300
_AFTER_A_GAP: Final = "a step before it in its sequence was not replayed"
_NOT_ITS_OWN: Final = "it names a response or a conversation that the replay has not made"
_TOO_DEEP: Final = "the values are nested too deeply to be compared"
_AFTER_NO_ANSWER: Final = "a step before it in its sequence has no answer now"


class ReplayPlan(NamedTuple):
    """How a journal is replayed.

    Attributes:
        server: The URL of the inference API.
        grpc: That of its gRPC port.
        models: The models whose requests are sent, each with the version that gets them, None for the default one;
            empty for all models.
        speed: How many times as fast as recorded requests are sent; None: as soon as there is room.
        at_once: How many may be without an answer.
        timeout: How long an answer may take (seconds).
        key: Of the server, if it asks for one.
    """

    server: str
    grpc: str
    models: Mapping[str, str | None]
    speed: float | None
    at_once: int
    timeout: float
    key: str | None
    comparison: Comparison


class Refused(Exception):
    """The server has no model that requests are meant for, or does not take the key; the message says which."""


class ServerGone(Exception):
    """A server cannot be reached, or not any more; the message says why."""


def _segment(name: str) -> str:
    """Return a name as one segment of a path, whatever it is."""
    return quote(name, safe="").replace(".", "%2E") if set(name) == {"."} else quote(name, safe="")


def _continued(body: bytes) -> Iterator[str]:
    """Yield what the body of a call says that it continues: ids of OpenAI's, in whatever form."""
    try:
        members = json.loads(body)
    except (ValueError, RecursionError):
        return
    if isinstance(members, dict):
        yield from (json.dumps(members.get(name)) for name in ("previous_response_id", "conversation"))


class _Followed:
    """A recorded sequence and the new one that stands for it."""

    __slots__ = (
        "broken",
        "generation",
        "has_differed",
        "has_no_answer",
        "last_step",
        "lost",
        "names",
        "outages",
        "steps",
    )

    def __init__(self, recorded_id: str, fresh_id: str, generation: str | None) -> None:
        self.names = SequenceNames(recorded_id, fresh_id)
        self.generation = generation
        #: The number of the latest step, if steps are numbered, by recorded sequence: forks belong to what they fork.
        self.steps: dict[str, int] = {}
        #: How many lines of the journal before the latest step were lost.
        self.lost: int | None = None
        #: Whether an answer has differed, so that those after it may differ for that reason.
        self.has_differed = False
        #: Why no further records are sent; empty while they are.
        self.broken = ""
        #: Whether a step that was sent has no answer: then those that wait behind it are not sent.
        self.has_no_answer = False
        #: How often the server was away before the latest answer; None before the first one.
        self.outages: int | None = None
        self.last_step: asyncio.Task[None] | None = None


class Replay:
    """One replay."""

    def __init__(self, plan: ReplayPlan, journal: JournalReader) -> None:
        self._plan = plan
        self._journal = journal
        self._run_id = uuid.uuid4().hex[:12]
        self._count = 0
        self._sequences: dict[tuple[str, str], _Followed] = {}
        #: Requests that were answered by the record of a fork, which is still to come.
        self._forking: list[JournalRecord] = []
        self._room = asyncio.Semaphore(plan.at_once)
        self._outages = 0
        #: What was found so far.
        self.report = ReplayReport()
        self.report.incomplete, self.report.damaged = journal.incomplete, journal.damaged
        self.report.missing = journal.missing
        self._senders: dict[str, ReplaySender] = {}
        #: Models of the journal that the server does not have, or does not show to this key, and what it says of them.
        self._refused: dict[str, str] = {}

    async def run(self) -> ReplayReport:
        """Send all requests, and return what was found.

        Raises ServerGone: the server cannot be reached, or not any more; Refused; JournalUnreadable.
        """
        plan, headers = self._plan, {"User-Agent": USER_AGENT}
        if plan.key is not None:
            headers["Authorization"] = f"Bearer {plan.key}"
        async with aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=plan.timeout),
            connector=aiohttp.TCPConnector(limit=0),
            skip_auto_headers=("Content-Type", "Accept"),
        ) as http:
            await self._check_server(http)
            calls, self._episodes = GrpcSender(plan.grpc, plan.timeout, plan.key), EpisodeSender(http, plan.server)
            self._senders = {"http": HttpSender(http, plan.server), "grpc": calls, "openpi": self._episodes}
            try:
                await self._send_all()
            except ExceptionGroup as group:
                raise group.exceptions[0] from None
            finally:
                await calls.close()
        return self.report

    async def _check_server(self, http: aiohttp.ClientSession) -> None:
        """Check that the server has the models, and takes the key: otherwise each request would fail for itself."""
        server, wanted = self._plan.server, self._plan.models or dict.fromkeys(self._journal.models)
        try:
            for name, version in wanted.items():
                of_version = "" if version is None else f"/versions/{quote(version, safe='')}"
                url = f"{server}/v2/models/{_segment(name)}{of_version}"
                async with http.get(URL(url, encoded=True), allow_redirects=False) as answer:
                    if answer.status in _REFUSED:
                        about_key = f" (the key is what {KEY_VARIABLE} has)" if answer.status in _KEY_REFUSED else ""
                        told = (await answer.content.read(_MOST_TOLD)).decode("utf-8", "replace")
                        self._refused[name] = f"{url} answers {answer.status}{about_key}: {told}"
            if self._refused and (self._plan.models or len(self._refused) == len(wanted)):
                raise Refused(next(iter(self._refused.values())))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServerGone(f"{server} cannot be reached: {error}") from error

    async def _send_all(self) -> None:
        began, first = time.monotonic(), None
        async with asyncio.TaskGroup() as group:
            for place in self._journal.places:
                record = self._journal.read(place)
                if self._plan.models and record["model"] not in self._plan.models:
                    continue
                if record["headers"].get("user-agent", "").startswith(USER_AGENT):  # on a model with a journal
                    continue
                first = place.at if first is None else first
                await self._wait_for(place, first, began)
                await self._room.acquire()
                self._begin(group, record, place)

    async def _wait_for(self, place: RecordPlace, first: float, began: float) -> None:
        if self._plan.speed is not None:
            due = began + (place.at - first) / self._plan.speed
            if (left := due - time.monotonic()) > 0:
                await asyncio.sleep(left)
            self.report.was_late(max(0.0, time.monotonic() - due))

    def _begin(self, group: asyncio.TaskGroup, record: JournalRecord, place: RecordPlace) -> None:
        """Begin to send a request, or count why it is not sent; then give its room back."""
        followed = None
        try:
            record = self._as_asked(record)
            followed = self._followed(record)
            self._check_whole(record, place, followed)
            if FORK_HEADER in record["answer_headers"]:
                self._forking.append(record)
                self._room.release()
                return
            fresh_id = None if followed is None else followed.names.fresh_id
            if record["model"] in self._refused:
                raise NotReplayable("the server has no such model, or refuses it to this key")
            request = request_of(record, self._plan.models.get(record["model"]), fresh_id)
        except NotReplayable as reason:
            self.report.not_replayed[str(reason)] += 1
            if followed is not None and not followed.broken and record["cause"] not in _HAS_NOT_RUN:
                followed.broken = _AFTER_A_GAP
            self._room.release()
            request = None
        before = None if followed is None else followed.last_step
        if request is not None:
            before = group.create_task(self._send_after(before, record, request, followed))
            if followed is not None:
                followed.last_step = before
        is_over = followed is not None and (followed.broken or self._journal.ends_episode(place))
        if followed is not None and before is not None and is_over:
            group.create_task(self._leave_after(before, followed.names.fresh_id))

    def _followed(self, record: JournalRecord) -> _Followed | None:
        """Return the sequence of a record, if it belongs to one."""
        if record["sequence"] is None:
            return None
        key, generation = (record["model"], record["sequence"]), record["sequence_generation"]
        followed = self._sequences.get(key)
        is_first = record["sequence_opens"] and record["step"] in (None, 1)
        continues = followed is not None and generation is not None and generation == followed.generation
        if followed is None or (is_first and not continues):
            self._count += 1
            followed = _Followed(record["sequence"], f"replay-{self._run_id}-{self._count}", generation)
            if not is_first and record["cause"] not in _HAS_NOT_RUN:
                followed.broken = "its sequence began before the journal"
            self._sequences[key] = followed
        return followed

    def _as_asked(self, record: JournalRecord) -> JournalRecord:
        """Return a record as its client has asked for it.

        A request that forks a response has two: of a look at what it forks, which has the body that was sent, and of
        a sequence of its own, whose body has the history as well. The fork is followed together with what it forks.
        """
        if record["protocol"] != RESPONSES or not record["sequence_opens"]:
            return record
        model, form = record["model"], record["body_form"]
        for asked in self._forking:
            is_of_it = asked["model"] == model and asked["body_form"] == form
            if is_of_it and str(record["body"]).endswith(str(asked["body"])):
                self._forking.remove(asked)
                forked = self._sequences[model, str(asked["sequence"])]
                self._sequences[model, str(record["sequence"])] = forked
                fork: JournalRecord = {**record, "body": asked["body"], "sequence_opens": False}
                return fork
        return record

    def _check_whole(self, record: JournalRecord, place: RecordPlace, followed: _Followed | None) -> None:
        """Check that the request had an answer, and that no step of its sequence before it is missing.

        Raises NotReplayable.
        """
        if followed is not None:
            step, sequence = record["step"], str(record["sequence"])
            before = followed.steps.get(sequence)
            if step is None and not followed.broken and followed.lost not in (None, place.lost):
                followed.broken = "a damaged line before it may be a step of its sequence"
            if step is not None and record["cause"] not in _HAS_NOT_RUN:
                if not followed.broken and before is not None and step > before + 1:
                    followed.broken = "a step before it in its sequence is not in the journal"
                followed.steps[sequence] = max(step, before or 0)
            followed.lost = place.lost
            if followed.broken:
                raise NotReplayable(followed.broken)
        if record["cause"] is not None:
            raise NotReplayable(f"it had no answer ({record['cause']})")

    async def _send_after(
        self,
        before: asyncio.Task[None] | None,
        record: JournalRecord,
        request: ReplayRequest,
        followed: _Followed | None,
    ) -> None:
        try:
            if before is not None:
                await asyncio.wait((before,))
            if followed is not None and followed.has_no_answer:
                self.report.not_replayed[_AFTER_NO_ANSWER] += 1
            else:
                await self._send(record, request, followed)
        finally:
            self._room.release()

    async def _leave_after(self, last_step: asyncio.Task[None], fresh_id: str) -> None:
        await asyncio.wait((last_step,))
        await self._episodes.leave(fresh_id)

    async def _send(self, record: JournalRecord, request: ReplayRequest, followed: _Followed | None) -> None:
        record, names = as_answered(record), SequenceNames("", "") if followed is None else followed.names
        if record["protocol"] == RESPONSES:
            if names.strangers(f"{request.path} {' '.join(_continued(request.body))}"):
                self.report.not_replayed[_NOT_ITS_OWN] += 1
                return
            body = names.in_request(request.body.decode("utf-8", "surrogateescape"))
            path, encoded = names.in_request(request.path), body.encode("utf-8", "surrogateescape")
            request = request._replace(path=path, body=encoded)
        expected = self._senders[request.endpoint].recorded_status(record)
        try:
            sent = await self._answer(request, expected, followed)
        except NotReplayable as reason:
            self.report.not_replayed[str(reason)] += 1
            return
        except NoAnswer as error:
            self._differs(record, [str(error)], followed)
            if followed is not None:
                followed.has_no_answer = True
            return
        self.report.took(record["waiting_seconds"] + record["running_seconds"], sent.seconds)
        if expected == BROKEN_OFF and ends_with_error(sent.messages):
            sent = sent._replace(status=BROKEN_OFF)
        if sent.status != expected:
            told = f": {sent.failure}" if sent.failure else ""
            self._differs(record, [f"status {expected} became {sent.status}{told}"], followed)
        elif what := self._compared(record, sent, names):
            self._differs(record, what, followed)

    async def _answer(self, request: ReplayRequest, expected: str, followed: _Followed | None) -> SentAnswer:
        """Return the answer to a request, which is sent again while the server is full or away.

        Raises NotReplayable: the server was away, and may have forgotten the sequence; NoAnswer; ServerGone.
        """
        pause, tries, fresh_id = _FIRST_PAUSE, _TRIES, None if followed is None else followed.names.fresh_id
        while True:
            if followed is not None and followed.outages not in (None, self._outages):
                raise NotReplayable("the server was away after a step before it in its sequence")
            began, tries = time.monotonic(), tries - 1
            try:
                sent = await self._senders[request.endpoint].send(request, fresh_id)
            except NotConnected as error:
                self._outages += 1
                if not tries:
                    raise ServerGone(str(error)) from error
            else:
                if followed is not None:
                    followed.outages = self._outages
                may_wait = sent.is_full and sent.status != expected and self._plan.speed is None
                if not (may_wait and tries):
                    return sent._replace(seconds=time.monotonic() - began)
            await asyncio.sleep(pause)
            pause *= 2

    def _compared(self, record: JournalRecord, sent: SentAnswer, names: SequenceNames) -> Sequence[str]:
        """Return what differs; count an answer that is the same or cannot be compared."""
        if record["failed"]:
            self.report.same()
            return ()
        kind = _OPENAI if record["headers"].get("url_path", "").startswith("v1/") else ""
        if record["protocol"] is not None:
            kind = record["protocol"]
        try:
            if kind == RESPONSES:
                names.learn(recorded_bytes(record), b"".join(sent.messages))
            recorded = recorded_documents(record)
        except NotComparable as reason:
            self.report.not_compared[str(reason)] += 1
            return ()
        try:
            replayed = [names.in_answer(each) for each in replayed_documents(record, sent.messages, sent.headers)]
        except RecursionError:
            return (_TOO_DEEP,)
        what = self._plan.comparison.of_documents(recorded, replayed, _OWN_MEMBERS.get(kind, ()))
        if not what:
            self.report.same()
        return what

    def _differs(self, record: JournalRecord, what: Sequence[str], followed: _Followed | None) -> None:
        where = record["path"] or f"({record['via']})"
        follows = followed is not None and followed.has_differed
        if followed is not None:
            followed.has_differed = True
        told = Difference(record["request_id"], record["time"], record["sequence"], where, what, follows)
        self.report.differs(told)
