"""LeRobot's policy server, `transport.AsyncInference`, on the gRPC inference port (``docs/live-sessions.md``).

A robot sends observations as they come, and asks for chunks of actions at the same time; only its latest observation
counts, also while a step waits for a worker. Each robot is an episode, a sequence of the model that its setup names,
and its policy gets one observation at a time. A chunk is due when the robot has executed the one before.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from torchserve_py.apis.grpc.method_table import GrpcMethod, account_of, client_of
from torchserve_py.apis.grpc.open_inference_dialect import DIALECT
from torchserve_py.apis.grpc.protos.lerobot_pb2 import Actions, Empty, PolicySetup
from torchserve_py.apis.lerobot.lerobot_messages import (
    SentObservation,
    Setup,
    body_of,
    chunk_of,
    needs_shim,
    pack_actions,
    read_observation,
    read_setup,
)
from torchserve_py.apis.live.episodes import Episode, Robots
from torchserve_py.apis.live.live_steps import StepTemplate
from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call
from torchserve_py.endpoints.failures import UNAVAILABLE, EndpointError, Failure, bad_request, failure_of_job
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.endpoints.sequences import SequenceHeaders
from torchserve_py.endpoints.time_limits import DEADLINE_NAMES, read_deadline, seconds_in
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http2.grpc_messages import BadGrpcMessage
from torchserve_py.net.http2.rpc import EOF, Rpc
from ts.protocol.messages import OPENPI

#: The metadata that names a robot, a secret of its client, and that says how long an action takes (milliseconds).
SESSION: Final = "ts_request_robot"
CONTROL_PERIOD: Final = "ts_request_control_period_ms"
#: The cause by which the client knows that it must introduce its robot again.
_UNKNOWN: Final = "robot_unknown"
_SHORTEST_SECRET: Final = 16
_LONGEST_SECRET: Final = 200
#: How long a robot waits for an observation to act on, as with LeRobot, and how long an observation is kept (seconds).
_WAIT: Final = 2.0
_KEPT: Final = 10.0


class _Robot:
    """A robot, from its `Ready` to the next one."""

    def __init__(self) -> None:
        self.episode = Episode("lerobot")
        self.setup: Setup | None = None
        #: The timestep of the observation that the latest chunk answers, and how many actions that has.
        self.chunk: tuple[int, int] | None = None
        #: Held by the request whose step the policy works on, or will: another one gets a later observation.
        self.turn = asyncio.Lock()
        #: The observation that the policy has, or will have once a worker is free.
        self.asked: SentObservation | None = None
        self._observation: SentObservation | None = None
        self._release: Callable[[], None] = _nothing
        self._timer: asyncio.TimerHandle | None = None
        self._comes = asyncio.Event()

    def observe(self, sent: SentObservation, release: Callable[[], None]) -> None:
        """Keep an observation instead of the one before, unless there is a chunk for its timestep.

        ``release`` stops counting its bytes. Raises EndpointError: it is no map.
        """
        if not sent.must_go and self.chunk is not None and sent.timestep <= self.chunk[0]:
            release()
            return
        if self.setup is not None and self.asked is not None and sent.timestep > self.asked.timestep:
            try:
                is_taken = self.episode.replace(partial(self.body, sent, self.setup))
            except EndpointError:
                release()
                raise
            if is_taken:
                self.asked = sent
                release()
                return
        self.drop()
        self._observation, self._release = sent, release
        self._timer = asyncio.get_running_loop().call_later(_KEPT, self.drop)
        self._comes.set()

    async def observation(self) -> SentObservation | None:
        """Return the latest observation, which is not kept any longer; None if none comes in time."""
        try:
            async with asyncio.timeout(_WAIT):
                while self._observation is None:
                    self._comes.clear()
                    await self._comes.wait()
        except TimeoutError:
            return None
        sent = self._observation
        self.drop()
        return sent

    def body(self, sent: SentObservation, setup: Setup) -> bytes:
        """Return what the policy gets. Raises EndpointError: the observation is no map."""
        executed = 0 if self.chunk is None else max(0, sent.timestep - self.chunk[0])
        return body_of(sent, setup, executed)

    def has_chunk(self, start: int, length: int) -> None:
        """Note the chunk for an observation, and forget another one that came while the policy worked on it.

        The robot sends further ones if it has few actions even with this chunk.
        """
        self.chunk = start, length
        if self._observation is not None and not self._observation.must_go:
            self.drop()

    def drop(self) -> None:
        """Forget the observation that waits, if one does."""
        if self._timer is not None:
            self._timer.cancel()
        self._release()
        self._observation, self._release, self._timer = None, _nothing, None

    def end(self) -> None:
        """Forget the robot."""
        self.drop()
        self.episode.restart()

    def deadline(self, sent: SentObservation, period: float) -> float | None:
        """Return in how many seconds the robot has no action left; None for the first chunk, and without a period."""
        if self.chunk is None or not period:
            return None
        start, length = self.chunk
        return max(1, start + length - 1 - sent.timestep) * period


def _nothing() -> None:
    """Release nothing."""


class LeRobotService:
    """Serves the robots of LeRobot's clients."""

    def __init__(self, context: EndpointContext) -> None:
        self._context = context
        self._headers = SequenceHeaders(context.settings)
        self._robots: Robots[_Robot] = Robots(_Robot.end)

    @property
    def methods(self) -> Mapping[str, GrpcMethod]:
        served: dict[str, Callable[[Any, Rpc], Any]] = {
            "Ready": self._ready,
            "SendPolicyInstructions": self._set_up,
            "SendObservations": self._take,
            "GetActions": self._act,
        }
        return {name: GrpcMethod(serve, DIALECT, TokenType.inference) for name, serve in served.items()}

    def _ready(self, request: Empty, rpc: Rpc) -> Empty:
        """Begin an episode."""
        self._refuse_if_draining()
        self._robots.put(_session_of(rpc), _Robot())
        return Empty()

    def _set_up(self, request: PolicySetup, rpc: Rpc) -> Empty:
        """Note which policy a robot wants."""
        robot = self._robot(rpc)
        setup = read_setup(request.data)
        self._template(rpc, setup)
        if robot.setup is not None and robot.setup.model != setup.model:
            robot.episode.restart()
        robot.setup = setup
        return Empty()

    async def _take(self, requests: Any, rpc: Rpc) -> Empty:
        """Take an observation, whose pieces count as held by the server until a policy has it."""
        robot, pieces, size = self._robot(rpc), [], 0
        most = self._context.settings.max_request_size
        while (piece := await requests.read()) is not EOF:
            size += len(piece.data)
            if size > most:
                message = f"An observation has at most {most} bytes, which max_request_size sets."
                raise EndpointError(Failure(413, "RequestEntityTooLargeException", message))
            try:
                rpc.reader.hold(len(piece.data))
            except BadGrpcMessage as error:
                raise EndpointError(Failure(503, UNAVAILABLE, str(error), overloaded=True)) from error
            pieces.append(piece.data)
        robot.observe(read_observation(b"".join(pieces)), rpc.reader.hand_over())
        return Empty()

    def _act(self, request: Empty, rpc: Rpc) -> Coroutine[Any, Any, Actions]:
        """Answer the latest observation; with an empty message if none comes in time."""
        robot = self._robot(rpc)
        setup = robot.setup
        if setup is None:
            raise bad_request("GetActions comes after SendPolicyInstructions, which names the policy.")
        return self._act_in_turn(robot, setup, rpc)

    async def _act_in_turn(self, robot: _Robot, setup: Setup, rpc: Rpc) -> Actions:
        async with robot.turn:
            return await self._act_on(robot, setup, rpc)

    async def _act_on(self, robot: _Robot, setup: Setup, rpc: Rpc) -> Actions:
        sent = await robot.observation()
        if sent is None:
            return Actions()
        template = self._template(rpc, setup)
        rpc.log_fields = {
            "sequence_id": robot.episode.sequence_id,
            "model": template.model.name,
            "model_version": template.model.version,
        }
        if robot.episode.is_new:  # the policy has no state yet, or has lost it
            robot.chunk = None
        period = seconds_in("Metadata", CONTROL_PERIOD, _texts(rpc).get(CONTROL_PERIOD)) or 0.0
        body, robot.asked = robot.body(sent, setup), sent
        try:
            answer = await robot.episode.step(template, body, robot.deadline(sent, period))
        finally:
            sent, robot.asked = robot.asked, None
        actions = chunk_of(answer.body)
        robot.has_chunk(sent.timestep, actions[b"shape"][0])
        return Actions(data=pack_actions(sent, actions, period))

    def _template(self, rpc: Rpc, setup: Setup) -> StepTemplate:
        """Return what a step has in common with the others of its episode.

        Raises EndpointError: the key of the call is not for the model, the model keeps no sequences, or what the
        metadata say of deadlines is wrong; ModelNotFound: there is no such model.
        """
        self._refuse_if_draining()
        serving = self._context.serving
        model = serving.get(setup.model)
        account = account_of(rpc, model.name)
        headers = [pair for pair in rpc.metadata if pair[0] != SESSION]
        common = Call(headers, b"", None, OPENPI, by_default=True, via="grpc", client=client_of(rpc), account=account)
        if not model.is_stateful:
            message = f'Model "{model.name}" keeps no sequences; set sequenceBatching: true in its model-config.yaml.'
            raise bad_request(message)
        metadata = _texts(rpc)
        if not DEADLINE_NAMES.isdisjoint(metadata):
            read_deadline(common, metadata.get, "Metadata", is_session=True)
        return StepTemplate(serving, self._context.settings, self._headers, model, None, common)

    def _robot(self, rpc: Rpc) -> _Robot:
        """Return the robot of a call. Raises EndpointError: the server does not know it."""
        robot = self._robots.get(_session_of(rpc))
        if robot is None:
            message = "The server does not know this robot, perhaps because it was restarted; call Ready first."
            raise EndpointError(Failure(412, "PreconditionFailedException", message, cause=_UNKNOWN))
        return robot

    def _refuse_if_draining(self) -> None:
        if self._context.is_draining:
            raise EndpointError(failure_of_job(Cause.draining, "", None))


def _session_of(rpc: Rpc) -> str:
    """Return what names the robot of a call. Raises EndpointError: nothing does, so the client sends pickles."""
    secret = _texts(rpc).get(SESSION)
    if secret is None:
        raise needs_shim()
    if not _SHORTEST_SECRET <= len(secret) <= _LONGEST_SECRET:
        message = f"Metadata {SESSION} is a secret of {_SHORTEST_SECRET} to {_LONGEST_SECRET} characters."
        raise bad_request(message)
    return secret


def _texts(rpc: Rpc) -> dict[str, str]:
    """Return the metadata of a call that are texts."""
    return {name: value for name, value in rpc.metadata if isinstance(value, str)}
