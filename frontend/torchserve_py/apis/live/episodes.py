"""Episodes: sequences of robots that wait for the answer to each observation before they send the next one.

Their protocols do not say when a robot has left, so an episode that is not used for a while is forgotten.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

from torchserve_py.apis.live.live_steps import StepTemplate
from torchserve_py.apis.live.message_forms import LiveStep
from torchserve_py.apis.live.session_ends import APPLIED, LOST
from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.failures import INTERNAL, EndpointError, Failure
from torchserve_py.net.running_time import running_time

#: How many episodes of a protocol a server keeps, and for how long without an observation (seconds).
MOST_EPISODES: Final = 10_000
_KEPT_SECONDS: Final = 600.0


class Episode:
    """The sequence of one robot; ``protocol`` begins its id."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._template: StepTemplate | None = None
        self._turn = asyncio.Lock()
        #: The step that has no answer yet.
        self._call: Call | None = None
        self._begin()

    def _begin(self) -> None:
        self.sequence_id = f"{self._protocol}-{secrets.token_hex(16)}"
        self._token = secrets.token_hex(16)
        self._last = 0

    @property
    def is_new(self) -> bool:
        """Whether the sequence has no step so far."""
        return not self._last

    def restart(self) -> None:
        """Let the next step begin another sequence; the one so far has ended."""
        if self._template is not None:
            self._template.serving.release_sequence(self._template.model, self.sequence_id)
            self._template = None
        self._begin()

    async def step(self, template: StepTemplate, body: bytes, deadline: float | None = None) -> Part:
        """Return the answer to an observation, which is in one part.

        Args:
            template: What steps have in common; its model is that of the episode.
            body: The observation.
            deadline: In how many seconds the answer is due; None: it has no deadline of its own.

        Raises:
            EndpointError: The step has failed. If the sequence is over, the next step begins another one.
        """
        async with self._turn:
            if self._template is not None and self._template.model.name != template.model.name:
                self.restart()
            self._template = template
            try:
                return await self._run(template, LiveStep(self._last + 1, body, deadline=deadline))
            except EndpointError as error:
                if error.failure.cause in (*LOST, Cause.sequence_ended):
                    self.restart()
                raise

    def replace(self, make_body: Callable[[], bytes]) -> bool:
        """Make a newer observation for the step that waits for a worker; return whether one waits."""
        return self._call is not None and self._call.replace_body(make_body)

    async def _run(self, template: StepTemplate, step: LiveStep) -> Part:
        starts, token = step.number == 1, self._token
        call = self._call = template.submit(self.sequence_id, step, _send_nothing, starts=starts, token=token)
        try:
            part = await call.next_usable()
            if part.more:
                message = "The model streams its answer; a policy answers in one piece."
                raise EndpointError(Failure(500, INTERNAL, message))
        except EndpointError as error:
            # The number of a step that was dropped because it could not be in time is not used again.
            if error.failure.cause in APPLIED or template.drops_late_steps:
                self._last = step.number
            raise
        finally:
            self._call = None
            call.cancel()
        self._last = step.number
        return part


async def _send_nothing(part: Part) -> None:
    """Send nothing: the caller of `Episode.step` gets the answer."""


Robot = TypeVar("Robot")


class Robots(Generic[Robot]):
    """What a server keeps of each robot, by what names the robot; ``forget`` is called with what is not kept longer."""

    def __init__(self, forget: Callable[[Robot], None]) -> None:
        self._forget = forget
        self._robots: OrderedDict[Hashable, tuple[float, Robot]] = OrderedDict()

    def get(self, key: Hashable) -> Robot | None:
        """Return what is kept of a robot, which is used now, or None."""
        self._tidy()
        kept = self._robots.pop(key, None)
        if kept is None:
            return None
        self._robots[key] = running_time().now(), kept[1]
        return kept[1]

    def put(self, key: Hashable, robot: Robot) -> None:
        """Keep a robot under a key; forget the one that had it, and the robot that was silent longest if needed."""
        if (kept := self._robots.pop(key, None)) is not None:
            self._forget(kept[1])
        while len(self._robots) >= MOST_EPISODES:
            self._forget(self._robots.popitem(last=False)[1][1])
        self._robots[key] = running_time().now(), robot

    def __iter__(self) -> Iterator[Robot]:
        return (robot for _, robot in self._robots.values())

    def _tidy(self) -> None:
        """Forget the robots that were silent for too long; those before them in the order were silent longer."""
        oldest = running_time().now() - _KEPT_SECONDS
        while self._robots:
            key, (used_at, robot) = next(iter(self._robots.items()))
            if used_at >= oldest:
                return
            del self._robots[key]
            self._forget(robot)
