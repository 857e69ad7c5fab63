"""The port for GR00T's clients: requests over ZeroMQ, of which a robot has one at a time (``docs/live-sessions.md``).

| endpoint | answer |
|---|---|
| ``get_action`` | the actions for an observation, which is a step of the robot's episode |
| ``reset`` | nothing; the robot's next observation begins another episode |
| ``get_modality_config`` | the key ``gr00t`` of the policy's `model-config.yaml` |
| ``ping`` | that the server runs |
| ``kill`` | refused |

ZeroMQ does not say when a robot has left; see `Robots`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from typing import Final

import zmq
import zmq.asyncio

from torchserve_py.apis.gr00t.gr00t_keys import modalities_of
from torchserve_py.apis.gr00t.gr00t_messages import Gr00tRequest, pack, pack_modalities, read_request
from torchserve_py.apis.gr00t.gr00t_settings import Gr00tSettings
from torchserve_py.apis.live.episodes import Episode, Robots
from torchserve_py.apis.live.live_steps import StepTemplate
from torchserve_py.base.background_tasks import in_background
from torchserve_py.base.causes import Cause
from torchserve_py.base.logs import access_log
from torchserve_py.base.settings.addresses import Address, in_url
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.binding import ListenError
from torchserve_py.endpoints.credentials import SentKey
from torchserve_py.endpoints.failures import (
    EXPECTED_ERRORS,
    EndpointError,
    Failure,
    bad_request,
    failure_of,
    failure_of_job,
)
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.endpoints.sequences import SequenceHeaders
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.admission import client_at
from ts.protocol.messages import GR00T

logger = logging.getLogger(__name__)

#: Messages of one connection that wait to be read or sent; a robot has one on its way.
_QUEUED: Final = 2
#: After how long a silent connection is asked for a sign, and given up (milliseconds).
_HEARTBEAT: Final = 20_000
_GIVE_UP: Final = 40_000
#: How long answers have that are being made when the server stops (seconds), and messages that are being sent (ms).
_STOP_SECONDS: Final = 5.0
_LINGER: Final = 1000
_LONGEST_TARGET: Final = 40


class Gr00tListener:
    """The open port."""

    def __init__(self, context: EndpointContext) -> None:
        self.addresses: dict[str, Address] = {}
        self._context = context
        self._headers = SequenceHeaders(context.settings)
        _, self._budget = context.limits("gr00t", for_operators=False)
        self._robots: Robots[Episode] = Robots(Episode.restart)
        #: The robots that wait for an answer, by what ZeroMQ calls them.
        self._waiting: set[bytes] = set()
        self._zmq = zmq.asyncio.Context()
        self._socket = self._zmq.socket(zmq.ROUTER)
        self._receiving: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Listen. Raises ListenError: the address cannot be used."""
        own, socket = self._context.settings.of(Gr00tSettings), self._socket
        options = {
            zmq.MAXMSGSIZE: self._context.settings.max_request_size,
            **dict.fromkeys((zmq.RCVHWM, zmq.SNDHWM), _QUEUED),
            zmq.HEARTBEAT_IVL: _HEARTBEAT,
            zmq.HEARTBEAT_TIMEOUT: _GIVE_UP,
            zmq.LINGER: _LINGER,
            zmq.IPV6: int(":" in own.gr00t_address),
        }
        for option, value in options.items():
            socket.setsockopt(option, value)
        place = f"{in_url(own.gr00t_address)}:{own.gr00t_port or '*'}"
        try:
            socket.bind(f"tcp://{place}")
        except zmq.ZMQError as error:
            raise ListenError(
                f"gr00t_port: cannot listen at {place}: {error}; stop what uses the address or choose another one"
            ) from error
        used = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self.addresses["gr00t_port"] = address = Address("tcp", own.gr00t_address, used)
        logger.info("gr00t_port: listening at %s", address)
        self._receiving = in_background(self._receive(), "receiving requests of GR00T's clients")

    async def close(self) -> None:
        """Take no more requests, give answers that are being made a few seconds, and end the rest."""
        if self._receiving is not None:
            self._receiving.cancel()
        if self._answering:
            _, late = await asyncio.wait(self._answering, timeout=_STOP_SECONDS)
            for task in late:
                task.cancel()
        self._socket.close()
        await asyncio.to_thread(self._zmq.term)

    async def _receive(self) -> None:
        """Take requests, and answer each in a task."""
        loop = asyncio.get_running_loop()
        while True:
            frames = await self._socket.recv_multipart(copy=False)
            if len(frames) != 3 or len(frames[1]):
                continue  # no request of a client with a socket of the kind REQ, which is all that waits for an answer
            task = loop.create_task(self._answer(frames[0].bytes, frames[2]))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, name: bytes, message: zmq.Frame) -> None:
        """Answer the request of the robot that ZeroMQ calls ``name``."""
        if name in self._waiting:
            return  # no client of GR00T's sends this: it would wait for its answer first
        began, client, size = time.monotonic(), str(message.get("Peer-Address")), len(message)
        status, endpoint = 200, ""
        self._waiting.add(name)
        try:
            self._budget.take(size)
            try:
                request = read_request(message.buffer)
                endpoint = request.endpoint
                answer = await self._answer_to(request, name, client)
            finally:
                self._budget.release(size)
        except Exception as error:
            if not isinstance(error, EXPECTED_ERRORS):
                logger.exception("A request of GR00T's client failed.")
            failure = failure_of(error)
            status, answer = failure.status, pack({"error": failure.message})
        finally:
            self._waiting.discard(name)
        await self._socket.send_multipart([name, b"", answer])
        if self._context.settings.access_log:
            target = f"gr00t/{endpoint if endpoint.isidentifier() else '-'}"[:_LONGEST_TARGET]
            access_log.note(client, "ZMQ", target, "ZMTP/3.1", status, time.monotonic() - began)

    def _episode(self, name: bytes, request: Gr00tRequest) -> Episode:
        """Return the episode of a robot; clients may choose what ZeroMQ calls them, but not the key of another one."""
        robot = name, hashlib.sha256((request.api_token or "").encode()).digest()
        episode = self._robots.get(robot)
        if episode is None:
            episode = Episode("gr00t")
            self._robots.put(robot, episode)
        return episode

    async def _answer_to(self, request: Gr00tRequest, name: bytes, client: str) -> bytes | bytearray:
        """Return the answer to a request. Raises EndpointError, ModelError: it is refused, or has failed."""
        tokens, account_of = self._context.tokens, None
        if tokens is not None:
            key = SentKey(request.api_token or "", given=request.api_token is not None)
            account_of = tokens.admit(TokenType.inference, key).account
        match request.endpoint:
            case "ping":
                return pack({"status": "ok", "message": "Server is running"})
            case "reset":
                self._episode(name, request).restart()
                return pack({})
            case "get_modality_config":
                return pack_modalities(modalities_of(self._policy()) or {})
            case "get_action":
                model = self._policy()
                account = None if account_of is None else account_of(model.name)
                call = Call((), b"", None, GR00T, by_default=True, via="zmq", client=client_at(client), account=account)
                settings = self._context.settings
                template = StepTemplate(self._context.serving, settings, self._headers, model, None, call)
                return (await self._episode(name, request).step(template, bytes(request.data))).body
            case "kill":
                message = "A client cannot stop this server; its operator can, by torchserve-py --stop."
                raise EndpointError(Failure(403, "ForbiddenException", message))
        raise bad_request(f"Unknown endpoint: {request.endpoint[:40]!a}")

    def _policy(self) -> ServedModel:
        """Return the model for GR00T's clients, whose requests name none.

        Raises EndpointError: no model declares itself such a policy, or several do, or the server shuts down.
        """
        if self._context.is_draining:
            raise EndpointError(failure_of_job(Cause.draining, "", None))
        policies = [model for model in self._context.serving.models() if modalities_of(model) is not None]
        if len(policies) == 1:
            return policies[0]
        names = ", ".join(model.name for model in policies)
        found = f"several models have: {names}" if policies else "no model has"
        raise bad_request(f"One model must have the key gr00t in its model-config.yaml, and {found}.")


async def open_gr00t(context: EndpointContext) -> Gr00tListener:
    """Open the port. Raises ListenError: the address cannot be used."""
    listener = Gr00tListener(context)
    try:
        listener.open()
    except BaseException:
        await listener.close()
        raise
    return listener
