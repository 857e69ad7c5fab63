"""A call that makes a response: it may continue another one, become a fork of that, or go on in the background."""

from __future__ import annotations

from collections.abc import Callable

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.client_call import HttpCall
from torchserve_py.endpoints.routing import Reply
from ts.apis.openai.openai_calls import FORK_HEADER, RUN_HEADER


class TurnCall(HttpCall):
    """A call that continues a response.

    Attributes:
        passed: Called once the next call of the sequence may be sent.
        fork: Returns the call that begins a sequence with what leads to the response, if another call continues it.
        run: Returns the reply to a request for a response that is made in the background, as it is now.
    """

    __slots__ = ("fork", "passed", "run")

    passed: Callable[[], None] | None
    fork: Callable[[bytes], TurnCall]
    run: Callable[[Part], Reply]

    def first(self, outcome: Part | Cause) -> None:
        self.pass_on()
        if not isinstance(outcome, Part):
            super().first(outcome)
            return
        try:
            reply = self.forked(outcome) or (self.run(outcome) if _has(outcome, RUN_HEADER) else None)
            if reply is None:
                super().first(outcome)
                return
            self.end_comments()
            self._replier.follow(reply)
        except Exception as error:
            self._replier.raised(error)

    def forked(self, part: Part) -> TurnCall | None:
        """Return the call that answers in the place of this one; None if the part belongs to the answer."""
        return self.fork(bytes(part.body)) if _has(part, FORK_HEADER) else None

    def cancel(self) -> None:
        super().cancel()
        self.pass_on()

    def pass_on(self) -> None:
        """Let the next call of the sequence be sent."""
        passed, self.passed = self.passed, None
        if passed is not None:
            passed()


def _has(part: Part, header: str) -> bool:
    return any(name == header for name, _ in part.headers)
