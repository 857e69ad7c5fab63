"""Whatever is lost on the way: a live session's client hands out the true answer to each step, or says what is true.

The server is a model of `docs/live-sessions.md`: it applies steps in order, keeps their answers, and fails some. The
connection is cut between any two messages, also while the session is resumed.
"""

import json
import struct
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from torchserve_py.client.replies import StepFailed
from torchserve_py.client.session_progress import SessionProgress

HEADER = struct.Struct(">BBHI")
WINDOW = 3
#: Why a step fails; the last cause breaks its answer off, and says nothing about whether the step is applied.
CAUSES = ["sequence_store", "no_worker", "handler_error", "outcome_unknown"]
NOT_APPLIED = {"sequence_store", "no_worker", "not_applied", "handler_error"}


class Server:
    """A store with the kept answers of one sequence, and the end of one connection."""

    def __init__(self, draw_outcome: "Outcomes") -> None:
        self.applied: list[bytes] = []
        self.kept: dict[int, bytes] = {}
        self.ended = 0
        self._draw = draw_outcome
        self.connect()

    def connect(self) -> None:
        self.last = self.last_known = 0  # the last step of this connection, and the last that it knows as applied
        self.is_closing = False
        self.out = deque[bytes | None]()  # None: the server closes

    def take(self, message: bytes) -> None:
        kind, flags, _, number = HEADER.unpack_from(message)
        body = message[HEADER.size :]
        if self.is_closing:
            return
        if kind == 2:
            self._resume(**json.loads(body))
        elif number <= self.last:
            self._tell(number, ask=True)
        else:
            self.last = number
            self._run(number, body, end=bool(flags & 1))

    def _run(self, number: int, body: bytes, *, end: bool) -> None:
        cause, is_applied = self._draw.next()
        answer = b"|".join([*self.applied, body])
        if not cause or (cause == "outcome_unknown" and is_applied):
            assert not self.ended, "a step is applied after the last one"
            assert self.last_known or not self.applied, "the sequence is begun anew"
            self.applied.append(body)
            self.kept[number] = answer
            self.last_known = number
            self.ended = number if end else 0
        if cause == "outcome_unknown":
            self.out.append(HEADER.pack(1, 1, 200, number) + answer[:1])
        if cause:
            self._fail(number, cause)
        else:
            self._tell(number)

    def _tell(self, number: int, *, ask: bool = False) -> None:
        if number not in self.kept:
            self._fail(number, "not_applied")
            return
        answer = self.kept[number]
        parts = [answer] if ask else [answer[:1], answer[1:]]
        for index, each in enumerate(parts):
            self.out.append(HEADER.pack(1, index < len(parts) - 1, 200, number) + each)
        if number == self.ended:
            self._close()

    def _fail(self, number: int, cause: str) -> None:
        told = {"status": 503, "cause": cause, "message": "no"}
        self.out.append(HEADER.pack(4, 0, 503, number) + json.dumps(told).encode())

    def _resume(self, resume: str, after: int, unanswered: list[int]) -> None:
        assert resume == "token"
        assert after == 0 or after in self.kept, "the client says that it has an answer which there never was"
        is_over = False
        for number in sorted({after, *unanswered} - {0}):
            if number in self.kept:
                self.last = self.last_known = number
                is_over = number == self.ended
                if number != after:
                    self.out.append(HEADER.pack(1, 0, 200, number) + self.kept[number])
        self.out.append(HEADER.pack(2, 0, 0, 0) + json.dumps({"last": self.last}).encode())
        if is_over:
            self._close()

    def _close(self) -> None:
        self.is_closing = True
        self.out.append(None)


class Outcomes:
    """What becomes of the steps, one after another; all succeed once the list is at its end."""

    def __init__(self, outcomes: list[tuple[str, bool]]) -> None:
        self._outcomes = deque(outcomes)

    def next(self) -> tuple[str, bool]:
        return self._outcomes.popleft() if self._outcomes else ("", False)


class Client:
    """`AsyncSession` without a network: messages wait in queues, and are lost when the connection is cut."""

    def __init__(self, server: Server, steps: int) -> None:
        self.server = server
        self.progress = SessionProgress()
        greeting = {"sequence": "live-1", "resume": "token", "last": 0, "window": WINDOW, "max_message_size": 100}
        self.progress.greeted(HEADER.pack(2, 0, 0, 0) + json.dumps(greeting).encode())
        self.sent = deque[bytes]()
        self.is_resuming = False
        self.bodies = [b"%d" % number for number in range(1, steps + 1)]
        self.waiting = deque[bytes]()  # bodies of the steps whose outcome was not handed out, in order
        self.left = deque(self.bodies)
        self.current = b""
        self.handed_out: dict[bytes, bytes | StepFailed] = {}

    @property
    def is_done(self) -> bool:
        return not self.left and not self.waiting

    def cut(self) -> None:
        """The connection is lost, and the session is resumed over another one, unless it has ended."""
        self.sent.clear()
        self.server.connect()
        if not self.progress.has_ended:
            self.sent.append(self.progress.resume())
            self.is_resuming = True

    def act(self, choice: int) -> None:
        """Do one of the things that can happen now."""
        self._hand_out()
        able = [self._send] if self._can_send else []
        able += [self._again] if self.progress.due and not self.is_resuming else []
        able += [self._deliver] if self.sent else []
        able += [self._hear] if self.server.out else []
        if able:
            able[choice % len(able)]()
        elif not self.is_done:
            self.cut()
        self._hand_out()

    @property
    def _can_send(self) -> bool:
        is_last = len(self.left) == 1
        room = self.progress.unanswered < WINDOW and not (is_last and self.waiting)
        return bool(self.left) and room and not self.is_resuming

    def _send(self) -> None:
        body = self.left.popleft()
        self.waiting.append(body)
        self.sent.append(self.progress.step(body, end=not self.left)[1])

    def _again(self) -> None:
        for number in tuple(self.progress.due):
            self.sent.append(self.progress.message(number))
            self.progress.due.remove(number)

    def _deliver(self) -> None:
        self.server.take(self.sent.popleft())

    def _hear(self) -> None:
        message = self.server.out.popleft()
        if message is None:
            self._hand_out()
            assert not self.waiting, "the session is closed before the last answer was handed out"
        elif not self.is_resuming:
            self.progress.take(message)
        elif (again := self.progress.resumed(message)) is not None:
            self.is_resuming = False
            self.sent += again

    def _hand_out(self) -> None:
        while self.progress.has_next:
            arrived = self.progress.next()
            if not isinstance(arrived, StepFailed):
                self.current += arrived.body
                if arrived.more:
                    continue
            self.handed_out[self.waiting.popleft()] = arrived if isinstance(arrived, StepFailed) else self.current
            self.current = b""


OUTCOME = st.tuples(st.sampled_from(["", "", "", *CAUSES]), st.booleans())


@settings(max_examples=500, deadline=None)
@given(
    steps=st.integers(1, 6),
    outcomes=st.lists(OUTCOME, max_size=8),
    choices=st.lists(st.integers(-2, 5), max_size=80),
)
def test_every_step_has_its_true_answer_or_a_true_failure(
    steps: int, outcomes: list[tuple[str, bool]], choices: list[int]
) -> None:
    server = Server(Outcomes(outcomes))
    client = Client(server, steps)
    for choice in choices:
        client.cut() if choice < 0 else client.act(choice)
    for _ in range(1000):
        if client.is_done:
            break
        client.act(0)
    assert client.is_done, "the session hangs"
    assert len(set(server.applied)) == len(server.applied), "a step was applied twice"
    for body, said in client.handed_out.items():
        if isinstance(said, StepFailed):
            assert said.cause not in NOT_APPLIED or body not in server.applied, f"{body!r} was applied: {said}"
        else:
            assert said.split(b"|") == server.applied[: server.applied.index(body) + 1]
