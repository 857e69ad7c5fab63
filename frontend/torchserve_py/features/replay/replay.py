"""Sends the requests of a journal to a running server again, in order, and compares its answers with the recorded ones.

The steps of a sequence run in order, in a new sequence with an id of its own: those of the server's clients are not
touched. A request waits only for the steps before it, for room among those that are sent at once, and with a speed for
its time.
"""

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import aiohttp

from torchserve_py.features.journal.answer_comparison import Comparison
from torchserve_py.features.journal.journal_record import JournalRecord, content_of
from torchserve_py.features.journal.read_journal import JournalReader, Place
from torchserve_py.features.replay.answer_documents import NotComparable, recorded_documents, replayed_documents
from torchserve_py.features.replay.episode_sender import EpisodeSender
from torchserve_py.features.replay.grpc_sender import GrpcSender
from torchserve_py.features.replay.http_sender import HttpSender
from torchserve_py.features.replay.replay_report import Difference, ReplayReport
from torchserve_py.features.replay.replay_requests import RESPONSES, NotReplayable, ReplayRequest, request_of
from torchserve_py.features.replay.senders import USER_AGENT, NoAnswer, NotConnected, Sender, SentAnswer
from torchserve_py.features.replay.sequence_names import SequenceNames
from torchserve_py.scheduling.effects import Cause
from ts.protocol.messages import OPEN_INFERENCE_GRPC, OPEN_INFERENCE_REST

#: The members of answers that tell one answer, or one server, from others.
_OPENAI: Final = "openai"
_OWN_MEMBERS: Final[Mapping[str, Sequence[str]]] = {
    OPEN_INFERENCE_REST: ("id", "model_version"),
    OPEN_INFERENCE_GRPC: ("id", "model_version"),
    _OPENAI: ("id", "created", "system_fingerprint"),
    RESPONSES: ("created_at", "response.created_at"),
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
_AFTER_A_GAP: Final = "a step before it in its sequence was not replayed"


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


class ServerGone(Exception):
    """A server cannot be reached, or not any more; the message says why."""


class _Followed:
    """A recorded sequence and the new one that stands for it."""

    def __init__(self, recorded_id: str, fresh_id: str, generation: str | None) -> None:
        self.names = SequenceNames(recorded_id, fresh_id)
        self.generation = generation
        #: Why no further steps are sent; empty while they are.
        self.broken = ""
        self.last_step: asyncio.Task[None] | None = None


class Replay:
    """One replay."""

    def __init__(self, plan: ReplayPlan, journal: JournalReader) -> None:
        self._plan = plan
        self._journal = journal
        self._run_id = uuid.uuid4().hex[:12]
        self._count = 0
        self._sequences: dict[tuple[str, str], _Followed] = {}
        self._room = asyncio.Semaphore(plan.at_once)
        #: What was found so far.
        self.report = ReplayReport()
        self.report.incomplete, self.report.damaged = journal.incomplete, journal.damaged
        self._senders: dict[str, Sender] = {}

    async def run(self) -> ReplayReport:
        """Send all requests, and return what was found.

        Raises aiohttp.ClientError: the server cannot be reached; ServerGone: not any more; JournalUnreadable.
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
            async with http.get(f"{plan.server}/live"):  # otherwise each request would fail for itself
                pass
            calls, self._episodes = GrpcSender(plan.grpc, plan.timeout, plan.key), EpisodeSender(http, plan.server)
            self._senders = {"http": HttpSender(http, plan.server), "grpc": calls, "openpi": self._episodes}
            try:
                await self._send_all()
            except ExceptionGroup as group:
                raise group.exceptions[0] from None
            finally:
                await calls.close()
        return self.report

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
                self._begin(group, record, is_last=self._journal.ends_episode(place))

    async def _wait_for(self, place: Place, first: float, began: float) -> None:
        if self._plan.speed is not None:
            due = began + (place.at - first) / self._plan.speed
            if (left := due - time.monotonic()) > 0:
                await asyncio.sleep(left)
            self.report.was_late(max(0.0, time.monotonic() - due))

    def _begin(self, group: asyncio.TaskGroup, record: JournalRecord, *, is_last: bool) -> None:
        """Begin to send a request, or count why it is not sent; then give its room back."""
        followed = None
        try:
            followed = self._followed(record)
            self._check_outcome(record)
            fresh_id = None if followed is None else followed.names.fresh_id
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
        if followed is not None and before is not None and (is_last or followed.broken):
            group.create_task(self._leave_after(before, followed.names.fresh_id))

    def _followed(self, record: JournalRecord) -> _Followed | None:
        """Return the sequence of a record. Raises NotReplayable: it cannot be followed."""
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
        if followed.broken:
            raise NotReplayable(followed.broken)
        return followed

    def _check_outcome(self, record: JournalRecord) -> None:
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
            if followed is not None and followed.broken:
                self.report.not_replayed[followed.broken] += 1
            else:
                await self._send(record, request, followed)
        finally:
            self._room.release()

    async def _leave_after(self, last_step: asyncio.Task[None], fresh_id: str) -> None:
        await asyncio.wait((last_step,))
        await self._episodes.leave(fresh_id)

    async def _send(self, record: JournalRecord, request: ReplayRequest, followed: _Followed | None) -> None:
        sender = self._senders[request.door]
        names = SequenceNames("", "") if followed is None else followed.names
        if record["protocol"] == RESPONSES:
            body = names.in_request(request.body.decode("utf-8", "surrogateescape"))
            request = request._replace(
                path=names.in_request(request.path), body=body.encode("utf-8", "surrogateescape")
            )
        pause, expected = _FIRST_PAUSE, sender.recorded_status(record)
        for left in reversed(range(_TRIES)):
            began = time.monotonic()
            try:
                sent = await sender.send(request, names.fresh_id)
            except NotConnected as error:
                if not left:
                    raise ServerGone(str(error)) from error
            except NoAnswer as error:
                self._differs(record, [str(error)])
                if followed is not None:
                    followed.broken = "a step before it in its sequence had no answer"
                return
            else:
                took = time.monotonic() - began
                may_wait = sent.is_full and sent.status != expected and self._plan.speed is None
                if not (may_wait and left):
                    break
            await asyncio.sleep(pause)
            pause *= 2
        self.report.took(record["waiting_seconds"] + record["running_seconds"], took)
        if sent.status != expected:
            told = f": {sent.failure}" if sent.failure else ""
            self._differs(record, [f"status {expected} became {sent.status}{told}"])
        else:
            self._compare(record, sent, names)

    def _compare(self, record: JournalRecord, sent: SentAnswer, names: SequenceNames) -> None:
        if record["failed"]:
            self.report.same()
            return
        kind = _OPENAI if record["headers"].get("url_path", "").startswith("v1/") else ""
        if record["protocol"] is not None:
            kind = record["protocol"]
        if kind == RESPONSES:
            names.learn(content_of(record["answer"], record["answer_form"]), b"".join(sent.messages))
        try:
            recorded = recorded_documents(record)
        except NotComparable as reason:
            self.report.not_compared[str(reason)] += 1
            return
        replayed = [names.in_answer(each) for each in replayed_documents(record, sent.messages, sent.headers)]
        if what := self._plan.comparison.of_documents(recorded, replayed, _OWN_MEMBERS.get(kind, ())):
            self._differs(record, what)
        else:
            self.report.same()

    def _differs(self, record: JournalRecord, what: Sequence[str]) -> None:
        where = record["path"] or f"({record['via']})"
        self.report.differs(Difference(record["request_id"], record["time"], record["sequence"], where, what))
