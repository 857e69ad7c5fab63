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
from torchserve_py.features.journal.replay_report import Difference, ReplayReport
from torchserve_py.features.journal.replay_requests import NotReplayable, ReplayRequest, request_of
from torchserve_py.scheduling.effects import Cause
from ts.protocol.messages import OPEN_INFERENCE_REST

#: By this requests of a replay are told from others.
USER_AGENT: Final = "torchserve-py-replay"
#: The members of answers that tell one answer, or one server, from others.
_OWN_MEMBERS: Final[Mapping[str, Sequence[str]]] = {
    OPEN_INFERENCE_REST: ("id", "model_version"),
    "openai": ("id", "created", "system_fingerprint"),
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
#: The statuses of a server that is full, how often a request is sent again then, and the first pause (seconds).
_FULL: Final = frozenset((429, 503))
_TRIES: Final = 8
_FIRST_PAUSE: Final = 0.1
#: The most of an answer that is read (bytes).
_LONGEST_ANSWER: Final = 256 << 20
_CHUNK: Final = 1 << 16


class ReplayPlan(NamedTuple):
    """How a journal is replayed.

    Attributes:
        server: The URL of the inference API.
        models: The models whose requests are sent, each with the version that gets them, None for the default one;
            empty for all models.
        speed: How many times as fast as recorded requests are sent; None: as soon as there is room.
        at_once: How many may be without an answer.
        timeout: How long an answer may take (seconds).
        key: Of the server, if it asks for one.
    """

    server: str
    models: Mapping[str, str | None]
    speed: float | None
    at_once: int
    timeout: float
    key: str | None
    comparison: Comparison


class _Followed:
    """A recorded sequence and the new one that stands for it."""

    def __init__(self, recorded_id: str, fresh_id: str, generation: str | None) -> None:
        self.recorded_id = recorded_id
        self.fresh_id = fresh_id
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
        self._report = ReplayReport()
        self._report.incomplete, self._report.damaged = journal.incomplete, journal.damaged

    async def run(self) -> ReplayReport:
        """Send all requests, and return what was found. Raises aiohttp.ClientError: the server cannot be reached."""
        headers = {"User-Agent": USER_AGENT}
        if self._plan.key is not None:
            headers["Authorization"] = f"Bearer {self._plan.key}"
        async with aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=self._plan.timeout),
            connector=aiohttp.TCPConnector(limit=0),
            skip_auto_headers=("Content-Type", "Accept"),
        ) as self._http:
            async with self._http.get(f"{self._plan.server}/live"):  # otherwise each request would fail for itself
                pass
            try:
                await self._send_all()
            except ExceptionGroup as group:
                raise group.exceptions[0] from None
        return self._report

    async def _send_all(self) -> None:
        began, first = time.monotonic(), None
        async with asyncio.TaskGroup() as group:
            for place in self._journal.places:
                record = self._journal.read(place)
                if self._plan.models and record["model"] not in self._plan.models:
                    continue
                if record["headers"].get("user-agent") == USER_AGENT:  # an earlier replay on a model with a journal
                    continue
                first = place.at if first is None else first
                await self._wait_for(place, first, began)
                await self._room.acquire()
                self._begin(group, record)

    async def _wait_for(self, place: Place, first: float, began: float) -> None:
        if self._plan.speed is not None:
            due = began + (place.at - first) / self._plan.speed
            if (left := due - time.monotonic()) > 0:
                await asyncio.sleep(left)
            self._report.was_late(max(0.0, time.monotonic() - due))

    def _begin(self, group: asyncio.TaskGroup, record: JournalRecord) -> None:
        """Begin to send a request, or count why it is not sent; then give its room back."""
        followed = None
        try:
            followed = self._followed(record)
            self._check_outcome(record)
            fresh_id = None if followed is None else followed.fresh_id
            request = request_of(record, self._plan.models.get(record["model"]), fresh_id)
        except NotReplayable as reason:
            self._report.not_replayed[str(reason)] += 1
            if followed is not None and not followed.broken and record["cause"] not in _HAS_NOT_RUN:
                followed.broken = "a step before it in its sequence was not replayed"
            self._room.release()
            return
        before = None if followed is None else followed.last_step
        task = group.create_task(self._send_after(before, record, request, followed))
        if followed is not None:
            followed.last_step = task

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
            await self._send(record, request, followed)
        finally:
            self._room.release()

    async def _send(self, record: JournalRecord, request: ReplayRequest, followed: _Followed | None) -> None:
        pause = _FIRST_PAUSE
        for left in reversed(range(_TRIES)):
            began = time.monotonic()
            try:
                status, answer = await self._answer(request)
            except (aiohttp.ClientError, TimeoutError) as error:
                what = f"no answer within {self._plan.timeout:g} s" if isinstance(error, TimeoutError) else str(error)
                self._differs(record, [what or type(error).__name__])
                return
            took = time.monotonic() - began
            is_full = status in _FULL and record["status"] not in _FULL and self._plan.speed is None
            if not (is_full and left) or isinstance(request.body, aiohttp.FormData):
                break
            await asyncio.sleep(pause)
            pause *= 2
        self._report.took(record["waiting_seconds"] + record["running_seconds"], took)
        self._compare(record, status, answer, followed)

    async def _answer(self, request: ReplayRequest) -> tuple[int, bytes]:
        url = self._plan.server + request.path
        async with self._http.request(
            request.method, url, headers=request.headers, data=request.body, allow_redirects=False
        ) as response:
            read = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK):
                read += chunk
                if len(read) > _LONGEST_ANSWER:
                    raise aiohttp.ClientError(f"the answer has more than {_LONGEST_ANSWER} bytes")
            return response.status, bytes(read)

    def _compare(self, record: JournalRecord, status: int, answer: bytes, followed: _Followed | None) -> None:
        if status != record["status"]:
            shown = answer[:200].decode("utf-8", "backslashreplace") if status >= 400 else ""
            self._differs(record, [f"status {record['status']} became {status}{': ' + shown if shown else ''}"])
            return
        if record["failed"]:
            self._report.same()
            return
        if record["answer_cut"]:
            self._report.not_compared["the recorded answer was cut (maxBodyBytes)"] += 1
            return
        if followed is not None:
            answer = answer.replace(followed.fresh_id.encode(), followed.recorded_id.encode())
        recorded = content_of(record["answer"], record["answer_form"])
        if record["protocol"] == OPEN_INFERENCE_REST and record["headers"].get(":endpoint", "").endswith("_stream"):
            answer = b"".join(line[6:] for line in answer.splitlines() if line.startswith(b"data: "))
        kind = "openai" if record["headers"].get("url_path", "").startswith("v1/") else record["protocol"]
        what = self._plan.comparison.differences(recorded, answer, _OWN_MEMBERS.get(kind or "", ()))
        if what:
            self._differs(record, what)
        else:
            self._report.same()

    def _differs(self, record: JournalRecord, what: Sequence[str]) -> None:
        where = record["path"] or f"({record['via']})"
        self._report.differs(Difference(record["request_id"], record["time"], record["sequence"], where, what))
