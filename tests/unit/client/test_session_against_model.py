"""What a session says against a model of the server, whatever fails and wherever its connection is cut."""

import json
import struct
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from torchserve_py.client.replies import StepFailed
from torchserve_py.client.session_progress import SessionProgress

HEADER = struct.Struct(">BBHI")
PASSING = ["sequence_store", "sequence_moved", "no_worker"]
WINDOW = 4


class Server:
    """A server that keeps one sequence; an answer tells all steps that count."""

    def __init__(self, draw: st.DataObject) -> None:
        self._draw = draw
        self.applied: dict[int, bytes] = {}
        self._answers: dict[int, bytes] = {}
        #: The number of the step with which the sequence has ended, 0 before.
        self.end = 0
        self.inbox = deque[bytes]()
        self.outbox = deque[bytes]()
        self.is_closed = False
        self.is_calm = False

    def chance(self, *outcomes: str) -> str:
        return outcomes[0] if self.is_calm else self._draw.draw(st.sampled_from(outcomes))

    def connect(self) -> None:
        self.inbox.clear()
        self.outbox.clear()
        self.is_closed = False

    def read(self) -> None:
        kind, flags, _, number = HEADER.unpack_from(message := self.inbox.popleft())
        if self.is_closed:
            return
        if kind == 2:
            self._resume(**json.loads(message[8:]))
        else:
            self._run(number, message[8:], ends=bool(flags))

    @property
    def last(self) -> int:
        return len(self.applied)

    def _apply(self, number: int, body: bytes, *, ends: bool) -> bytes:
        assert body not in self.applied.values(), "applied twice"
        assert number == self.last + 1
        self.applied[number] = body
        self._answers[number] = b" ".join(self.applied.values())
        self.end = number if ends else 0
        return self._answers[number]

    def _run(self, number: int, body: bytes, *, ends: bool) -> None:
        if number <= self.last:
            assert self.applied[number] == body, "the number of a step that counts is used for another one"
            self._part(number, self._answers[number])
        elif self.end:
            self._fail(number, "sequence_ended")
            self.is_closed = True
        elif number > self.last + 1:
            self._fail(number, "step_gap")
        else:
            match outcome := self.chance("answer", "stream", "applied", "not applied", "handler_error", *PASSING):
                case "answer":
                    self._part(number, self._apply(number, body, ends=ends))
                case "stream":
                    answer = self._apply(number, body, ends=ends)
                    self._part(number, answer[:2], more=True)
                    self._part(number, answer[2:])
                case "applied" | "not applied":
                    if broken := self.chance("", "stream"):
                        will_be = b" ".join([*self.applied.values(), body])
                        self._part(number, will_be[: len(broken)], more=True)
                    if outcome == "applied":
                        self._apply(number, body, ends=ends)
                    self._fail(number, "outcome_unknown")
                case _:
                    self._fail(number, outcome)

    def _resume(self, resume: str, after: int, unanswered: list[int]) -> None:
        assert resume == "token"
        assert len(unanswered) <= WINDOW
        assert not after or after in self.applied
        for number in sorted({after, *unanswered} - {0}):
            outcome = self.chance("told", "told", "told", "outcome_unknown", "request_running", *PASSING)
            if outcome != "told":
                self._fail(number, outcome)
                self.is_closed = True
                return
            if number in self.applied and number != after:
                self._part(number, self._answers[number])
        self.outbox.append(greeting(self.last))
        self.is_closed = self.end > 0

    def _part(self, number: int, body: bytes, *, more: bool = False) -> None:
        self.outbox.append(HEADER.pack(3, 1, 200, number) + json.dumps({"step": str(number)}).encode())
        self.outbox.append(HEADER.pack(1, more, 200, number) + body)
        self.is_closed |= number == self.end and not more

    def _fail(self, number: int, cause: str) -> None:
        said = json.dumps({"status": 503, "cause": cause, "message": ""}).encode()
        self.outbox.append(HEADER.pack(4, 0, 503, number) + said)


def greeting(last: int) -> bytes:
    told = {"sequence": "live-1", "resume": "token", "last": last, "window": WINDOW, "max_message_size": 100}
    return HEADER.pack(2, 0, 0, 0) + json.dumps(told).encode()


class Caller:
    """A session as `AsyncSession` drives it, and what its caller is told."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.progress = SessionProgress()
        self.progress.greeted(greeting(0))
        self.is_resuming = self.is_ending = self.is_over = False
        self.bodies: list[bytes] = []
        self.told: list[bytes | StepFailed] = []
        self._stream = b""

    @property
    def can_send(self) -> bool:
        return not (self.is_ending or self.is_over) and self.progress.unanswered < WINDOW

    def send(self, *, end: bool) -> None:
        body = b"%c" % (65 + len(self.bodies))
        self.bodies.append(body)
        _, message = self.progress.step(body, end=end)
        self.is_ending = end
        if not self.is_resuming:
            self.server.inbox.append(message)

    def hear(self) -> None:
        message = self.server.outbox.popleft()
        if not self.is_resuming:
            self.progress.take(message)
        elif (again := self.progress.resumed(message)) is not None:
            self.is_resuming = False
            self.server.inbox.extend(again)

    def ask(self) -> None:
        self.server.inbox.extend(self.progress.messages_due())
        self.progress.due.clear()

    def connect_again(self) -> None:
        """The connection is lost."""
        if self.progress.has_ended and not self.progress.misses_answers:
            self.is_over = True
            return
        self.server.connect()
        self.is_resuming = True
        self.server.inbox.append(self.progress.resume())

    def closed(self) -> None:
        """All has been heard, and the server has closed the connection."""
        self.is_over = not self.is_resuming and self.server.end > 0 and not self.progress.misses_answers
        if not self.is_over:
            self.connect_again()

    def receive(self) -> None:
        got = self.progress.next()
        if isinstance(got, StepFailed):
            self.told.append(got)
            self._stream = b""
            return
        assert got.headers in ({}, {"step": str(got.number)})
        self._stream += got.body
        if not got.more:
            self.told.append(self._stream)
            self._stream = b""


def turn(draw: st.DataObject, caller: Caller) -> None:
    """Let one thing happen."""
    server, progress = caller.server, caller.progress
    can = {
        "send": caller.can_send,
        "end": caller.can_send and not progress.is_awaited,
        "read": bool(server.inbox),
        "hear": bool(server.outbox),
        "receive": progress.has_next,
        "ask": bool(progress.due) and not caller.is_resuming,
        "closed": server.is_closed and not server.outbox,
        "cut": True,
    }
    if server.is_calm:
        can["send"] = can["end"] = can["cut"] = False
    match draw.draw(st.sampled_from([name for name, possible in can.items() if possible])):
        case "send":
            caller.send(end=draw.draw(st.integers(0, 4)) == 0)
        case "end":
            caller.send(end=True)
        case "read":
            server.read()
        case "hear":
            caller.hear()
        case "receive":
            caller.receive()
        case "ask":
            caller.ask()
        case "closed":
            caller.closed()
        case "cut":
            for _ in range(draw.draw(st.integers(0, len(server.inbox)))):
                server.read()
            caller.connect_again()


@given(st.data())
@settings(max_examples=examples(150))
def test_a_caller_is_told_what_counts(draw: st.DataObject) -> None:
    server = Server(draw)
    caller = Caller(server)
    for _ in range(draw.draw(st.integers(1, 60))):
        if caller.is_over:
            break
        turn(draw, caller)
    server.is_calm = True
    for _ in range(500):
        if caller.progress.has_next:
            caller.receive()
        elif caller.is_over or not caller.progress.is_awaited:
            break
        else:
            turn(draw, caller)
    assert not caller.progress.is_awaited, "steps have no outcome"
    assert len(caller.told) == len(caller.bodies)
    applied = b" ".join(server.applied.values())
    for body, told in zip(caller.bodies, caller.told, strict=True):
        if isinstance(told, bytes):
            assert told == applied[: applied.index(body) + 1]
        elif told.cause != "outcome_unknown":
            assert body not in applied, told
