"""Clients that believe every word that they are told, and check that what they see later agrees with it.

A client runs one incarnation of a sequence after another. Some clients number their steps, some send request ids, some
count them from 1 in each incarnation, some send none. Of steps with numbers copies come late; see `tests.chaos.copies`.
After an error that says that a step does not count, a client expects exactly the
state before it; where it was told nothing, or ``outcome_unknown``, it asks, by sending the step again under the same id
(the one that the answer names, if it had sent none); after 410 it expects the state to be gone.
"""

import asyncio
import itertools
import random
import time
import uuid
from collections.abc import Awaitable, Callable

from tests.chaos.attempts import Attempt, Incarnation, Result, Sender, Step, Tally
from tests.chaos.copies import Copier
from tests.chaos.endpoints import Endpoint
from tests.chaos.ledger import Contradiction, Ledger, Status
from tests.chaos.timeline import Timeline

#: How long a step may take from its first attempt to a definite outcome (seconds).
SETTLE_LIMIT = 90.0
#: Between two attempts, at most (seconds).
PAUSE = 0.2
#: A client that is not patient waits so long for an answer (seconds).
PATIENCE = (0.2, 3.0)
#: Of how many of the last steps the answers are kept, at least; the server keeps ``maxSequenceJobQueueSize`` + 2.
KEPT = 4
#: Refusals that no client may get to a step of which it has no answer yet.
IMPOSSIBLE = {"step_applied", "step_differs", "step_gap", "sequence_ended"}


class LostTrack(Exception):
    """The client cannot know any more what the sequence has to be: it goes on with another one."""


class Client:
    """One incarnation after another, one step after another, at one of several servers."""

    #: In how many of the incarnations it waits for every answer.
    patient = 0.7

    def __init__(self, name: str, sender: Sender, tally: Tally, timeline: Timeline, copier: Copier) -> None:
        self._name = name
        self._sender = sender
        self._tally = tally
        self._timeline = timeline
        self._copier = copier
        self._tokens = itertools.count(1)
        self._server = random.randrange(len(sender.servers))
        self._ledger = self._new_ledger()
        self._ids = "unique"
        self._count = itertools.count(1)
        self._now: Incarnation | None = None  # if the client numbers its steps
        self._patient = True
        self._answers: list[tuple[Step, list[str]]] = []  # of this incarnation, in their order

    def _new_ledger(self) -> Ledger:
        return Ledger(f"{self._name}-{uuid.uuid4().hex[:8]}")

    async def run(self, stopping: asyncio.Event) -> None:
        """Run incarnations until it is time to stop; each step gets its outcome."""
        while not stopping.is_set():
            await self._watched(lambda: self._incarnation(stopping))

    async def finish(self) -> None:
        """Step once more, in peace."""
        await self._watched(self._last_step)

    async def _last_step(self) -> None:
        if self._ledger.ghosts:
            self._ledger = self._new_ledger()
        self._ids, self._now = "unique", None  # a start that was refused has begun to count anew
        await self._settle(self._step(starts=self._ledger.status is Status.GONE), patient=True)

    async def _watched(self, action: Callable[[], Awaitable[None]]) -> None:
        ledger = self._ledger
        try:
            await action()
        except LostTrack:
            self._ledger = self._new_ledger()
        except Contradiction as contradiction:
            ledger = self._ledger
            story = self._timeline.story(ledger)
            self._tally.contradictions.append(f"{ledger.sequence}: {contradiction}\n{story}")
            self._ledger = self._new_ledger()

    # An incarnation

    async def _incarnation(self, stopping: asyncio.Event) -> None:
        ledger, before = self._ledger, self._now
        if ledger.ghosts or random.random() < 0.3:
            ledger, before = self._new_ledger(), None
            self._ledger = ledger
        self._tally.incarnations += 1
        self._ids = random.choice(["none", "counted", "unique", *["numbered"] * 3])
        self._now = self._next_incarnation()
        self._count = itertools.count(1)
        self._patient = self._has_patience()
        self._answers = []
        if ledger.status is Status.GONE and random.random() < 0.5:
            await self._expect_gone()
        if ledger.status in {Status.ENDED, Status.GONE} and random.random() < 0.5:
            self._move()
        may_omit = ledger.status in {Status.NONE, Status.ENDED}
        may_omit |= ledger.status is Status.GONE and self._now is not None
        first = self._step(starts=not may_omit or random.random() < 0.5, sleep=self._slow(0.1))
        is_over = ledger.status in {Status.ENDED, Status.GONE} and not ledger.store_failed and ledger.copied_at is None
        if before is not None:
            before.left = True
        if await self._settle(first, anywhere=is_over) != "applied":
            return
        if before is not None:
            before.over = True
        actions = [self._plain] * 12 + [self._repeat] * 3 + [self._pipelined, self._start_meanwhile, self._idle]
        for _ in range(random.randint(1, 12)):
            if stopping.is_set() or ledger.status is not Status.OPEN:
                return
            if random.random() < 0.03:
                self._move()
            await asyncio.sleep(PAUSE * random.random())
            await random.choice(actions)()
        if ledger.status is Status.OPEN and random.random() < 0.8:
            await self._end()

    async def _end(self) -> None:
        ends, stream = random.choice([("header", 0), ("handler", 0), ("handler", 3), ("header", 3)])
        await self._settle(self._step(ends=ends, stream=stream, sleep=0.2 if stream else 0.0))
        if self._ledger.status is Status.ENDED and random.random() < 0.3:
            await self._repeat()

    def _has_patience(self) -> bool:
        """Whether it waits for every answer of an incarnation."""
        return random.random() < self.patient

    def _next_incarnation(self) -> Incarnation | None:
        """Return one for a client that numbers its steps."""
        if self._ids != "numbered":
            return None
        named_by_server = self._ledger.status is Status.NONE and random.random() < 0.2
        return Incarnation(None if named_by_server else uuid.uuid4().hex)

    def _step(
        self, *, starts: bool = False, ends: str = "", sleep: float = 0.0, stream: int = 0, ahead: int = 0
    ) -> Step:
        """Return a new step; ``ahead`` is how many steps before it have no answer yet."""
        now, ids = self._now, {"counted": str(next(self._count)), "unique": uuid.uuid4().hex}
        number = None if now is None else now.last + 1 + ahead
        fail = 0.5 if random.random() < 0.03 else 0.0
        token = f"{self._name}.{next(self._tokens)}"
        step = Step(token, ids.get(self._ids), now, number, starts, ends, sleep, fail, stream)
        if now is not None:
            self._copier.keep(step, self._ledger)
        return step

    def _slow(self, rate: float) -> float:
        return random.uniform(0.2, 1.2) if random.random() < rate else 0.0

    def _move(self) -> None:
        self._server = random.randrange(len(self._sender.servers))

    async def _plain(self) -> None:
        stream = 3 if random.random() < 0.1 else 0
        step = self._step(sleep=self._slow(0.1) or (0.2 if stream else 0.0), stream=stream)
        await self._settle(step)

    async def _repeat(self) -> None:
        """Ask for an answer again, by any endpoint: it is the same, and nothing is applied."""
        named = [(step, answer) for step, answer in self._answers if step.has_name]
        if len(self._answers) > 1:  # to send the first step again may begin anew, if the sequence is over
            first = self._answers[0][0]
            named = [(step, answer) for step, answer in named if step is not first or step.number is not None]
        if not named or self._ledger.ghosts:
            return
        step, answer = random.choice(named)
        endpoints = [Endpoint.HTTP, *self._sender.servers[self._server].endpoints]
        # The same text is another body by another endpoint: with an id only, the first step would begin anew.
        endpoint = Endpoint.HTTP if step.number is None and step is self._answers[0][0] else random.choice(endpoints)
        attempt = await self._sender.send(step, self._ledger, self._server, endpoint=endpoint)
        is_kept = any(step is each for each, _ in self._answers[-KEPT:])
        if endpoint is Endpoint.HTTP and (
            attempt.cause == "step_differs" or (attempt.cause == "step_applied" and is_kept)
        ):
            raise Contradiction(f"the answer to {step.token} is not kept: {attempt}")
        if attempt.result is Result.ANSWERED and attempt.tokens != answer:
            raise Contradiction(f"the answer to {step.token} was {answer}, repeated it is {attempt.tokens}")
        if attempt.status == 410:
            raise Contradiction(f"{step.token} was acknowledged, and its repetition gets 410")

    async def _idle(self) -> None:
        """Leave the sequence alone for longer than it may be."""
        if not self._ledger.ghosts:
            await asyncio.sleep(self._timeline.idle_limit * random.uniform(0.8, 2.0))
            await self._plain()

    async def _expect_gone(self) -> None:
        """Told that the state is gone, the client tries whether that is so."""
        await self._settle(Step(f"{self._name}.{next(self._tokens)}", uuid.uuid4().hex))

    async def _pipelined(self) -> None:
        """Several steps at once. None is tried again unless its outcome is unknown."""
        steps = [self._step(sleep=self._slow(0.2), ahead=ahead) for ahead in range(random.randint(2, 3))]
        for step in steps:
            self._ledger.doubt(step.token)
        attempts = await asyncio.gather(*(self._sender.send(step, self._ledger, self._server) for step in steps))
        pairs = list(zip(steps, attempts, strict=True))
        for step, attempt in pairs:
            if attempt.status == 410:
                self._told_gone(step, attempt)
                return
            if attempt.cause in IMPOSSIBLE and (attempt.cause != "step_gap" or step is steps[0] or self._now is None):
                raise Contradiction(f"{step.token} cannot get {attempt}")
            if attempt.result in {Result.REFUSED, Result.UNREACHED}:
                self._ledger.refute(step.token)
        for step, attempt in sorted(pairs, key=lambda pair: len(pair[1].tokens)):
            if attempt.result is Result.ANSWERED:
                self._believe(step, attempt)
        if self._now is not None:  # a step counts only after those before it
            for step, attempt in pairs:
                if attempt.result is not Result.ANSWERED and self._ledger.status is Status.OPEN:
                    is_unknown = attempt.result in {Result.UNKNOWN, Result.UNHEARD}
                    await self._settle(step, heard=attempt if is_unknown else None, insist=True)
            return
        for step, attempt in pairs:
            if attempt.result in {Result.UNKNOWN, Result.UNHEARD}:
                step.request_id = step.request_id or attempt.request_id
                if step.request_id is not None and self._ledger.status is Status.OPEN:
                    await self._settle(step, heard=attempt)

    async def _start_meanwhile(self) -> None:
        """Begin anew while a step runs: it is answered before, or told that the sequence has moved on."""
        ledger, server, now = self._ledger, self._server, self._now
        if ledger.ghosts:
            return  # a step without a number that comes late may enter what begins here
        running, count = self._step(sleep=random.uniform(0.2, 1.2)), self._count
        self._now = self._next_incarnation()
        if random.random() < 0.5:
            self._count = itertools.count(1)
        start = self._step(starts=True)
        ledger.doubt(running.token)
        sending = asyncio.create_task(self._sender.send(running, ledger, server))
        try:
            await asyncio.sleep(random.uniform(0.02, 0.6))
            if now is not None:
                now.left = True
            before, unknown = [*ledger.state, running.token], ledger.at_large - {running.token}
            outcome = await self._settle(start, patient=True)
            attempt = await sending
        finally:
            sending.cancel()
        if outcome != "applied":
            self._count, self._now = count, now
        elif now is not None:
            now.over = True
        if outcome == "applied":
            if attempt.result is Result.ANSWERED and [each for each in attempt.tokens if each not in unknown] != before:
                if running.number is not None:
                    raise Contradiction(f"{running.token} has entered another incarnation: {attempt}")
                self._believe(running, attempt)  # it has come after the start
            else:
                ledger.refute(running.token)
        elif attempt.result is Result.ANSWERED:
            self._believe(running, attempt)
        elif attempt.result is Result.REFUSED:
            ledger.refute(running.token)
        elif running.has_name or attempt.request_id:
            if not running.has_name:
                running.request_id = attempt.request_id
            await self._settle(running, heard=attempt)

    # A step

    async def _settle(
        self,
        step: Step,
        *,
        patient: bool = False,
        anywhere: bool = False,
        heard: Attempt | None = None,
        insist: bool = False,
    ) -> str:
        """Send a step until its outcome is known; return ``applied`` or ``refused``, ``gone`` (the state),
        or ``unknown`` (there is no id under which to ask).

        Args:
            step: What to send.
            patient: Never to give an attempt up.
            anywhere: Whether nobody can hold the sequence, since it is over.
            heard: An attempt that has been made already, whose outcome is unknown.
            insist: Whether to send the step until it is applied, since others were sent that follow it.

        Raises:
            Contradiction: What the server says contradicts what it has said.
            LostTrack: The outcome can never be known.
        """
        began, ledger, tries = time.monotonic(), self._ledger, 0
        unsettled = heard is not None
        while True:
            if time.monotonic() > began + SETTLE_LIMIT:
                raise Contradiction(f"no outcome of {step.token} within {SETTLE_LIMIT:.0f} s")
            patience = {} if patient or self._patient else {"patience": random.uniform(*PATIENCE)}
            server = self._server
            attempt = await self._sender.send(step, ledger, server, **patience)
            self._tally.slowest = max(self._tally.slowest, time.monotonic() - began)
            tries += 1
            ledger.store_failed = attempt.cause == "sequence_store"
            if attempt.result is Result.ANSWERED:
                self._settled(step, attempt, began if unsettled else None)
                return "applied"
            _check_possible(step, attempt, is_free=anywhere and tries == 1, is_sent_before=unsettled)
            if attempt.status == 410:
                return self._told_gone(step, attempt)
            if attempt.result is Result.REFUSED:
                if insist or (unsettled and step.number is not None):
                    pass  # a step with another body may have this number only once it is known that this one has not
                elif not attempt.again:
                    self._tally.asked += unsettled
                    if not (unsettled and ledger.ghosts):
                        ledger.refute(step.token)
                        unsettled = False
                    if tries > 3 or random.random() < 0.5:
                        return "refused"
                elif not unsettled and random.random() < 0.2:
                    ledger.refute(step.token)
                    return "refused"
            elif attempt.result is not Result.UNREACHED:
                self._heard_nothing(step, attempt)
                if not step.has_name:
                    return "unknown"
                unsettled = True
            await self._pause(attempt)

    async def _pause(self, attempt: Attempt) -> None:
        if attempt.result in {Result.UNHEARD, Result.UNREACHED} or attempt.cause in {"sequence_moved", "draining"}:
            self._move()
        await asyncio.sleep(PAUSE * random.random())

    def _settled(self, step: Step, attempt: Attempt, unknown_since: float | None) -> None:
        ledger, gap = self._ledger, self._ledger.longest_gap
        self._believe(step, attempt)
        if unknown_since is not None:  # an earlier attempt may have been the one that was applied
            self._tally.asked += 1
            ledger.longest_gap, ledger.acknowledged_at = gap, unknown_since
            ledger.worked_at = unknown_since

    def _heard_nothing(self, step: Step, attempt: Attempt) -> None:
        ledger = self._ledger
        ledger.doubt(step.token)
        if step.number is not None:
            # A late first step without a token may begin another incarnation.
            ledger.ghosts |= attempt.result is Result.GAVE_UP and "ts_request_sequence_token" not in step.said
            return
        ledger.ghosts |= attempt.result is Result.GAVE_UP
        step.request_id = step.request_id or attempt.request_id
        if step.request_id is None and (step.starts or step.ends or ledger.status is not Status.OPEN):
            raise LostTrack

    def _believe(self, step: Step, attempt: Attempt) -> None:
        self._ledger.answered(step.token, attempt.tokens, starts=step.begins, ends=bool(step.ends))
        if step.incarnation is not None:
            self._count_number(step, step.incarnation, attempt)
        self._tally.acknowledged += 1
        self._ledger.acknowledged(attempt.ended_at)
        if step.begins:
            self._answers.clear()
        self._answers.append((step, attempt.tokens))

    def _count_number(self, step: Step, incarnation: Incarnation, attempt: Attempt) -> None:
        incarnation.name = incarnation.name or attempt.incarnation
        if incarnation.name is None or attempt.incarnation != incarnation.name:
            raise Contradiction(f"{step.token} is of {incarnation.name}, the answer of {attempt.incarnation}")
        if step.number != len(attempt.tokens):
            raise Contradiction(f"{step.token} has the number {step.number}, and is one of {attempt.tokens}")
        incarnation.last = max(incarnation.last, step.number)
        incarnation.over |= bool(step.ends)
        step.answer = attempt.tokens

    def _told_gone(self, step: Step, attempt: Attempt) -> str:
        ledger = self._ledger
        if step.begins or attempt.cause == "sequence_ended":
            raise Contradiction(f"{step.token} cannot get {attempt}")
        if ledger.status in {Status.NONE, Status.ENDED}:
            raise Contradiction(f"410, but the sequence is {ledger.status}")
        if ledger.status is Status.OPEN:
            why = self._timeline.why_expired(ledger)
            if not why:
                raise Contradiction(f"410 after {ledger.longest_gap:.2f} s at most without a request")
            self._tally.expired[why] += 1
        ledger.refute(step.token)
        ledger.gone()
        if step.incarnation is not None:
            step.incarnation.over = True
        return "gone"


def _check_possible(step: Step, attempt: Attempt, *, is_free: bool, is_sent_before: bool) -> None:
    """Raise Contradiction: nobody may be told this of a step."""
    if attempt.cause in IMPOSSIBLE:
        raise Contradiction(f"{step.token} cannot get {attempt}")
    if is_free and attempt.cause == "sequence_moved":
        raise Contradiction("the sequence is over, and yet another server is said to run it")
    if attempt.cause == "request_running" and not is_sent_before:
        raise Contradiction(f"{step.token} is said to run, but is not under way")
