"""The endpoint for robots: the protocol of openpi's policy server, a WebSocket per episode (``docs/live-sessions.md``).

    GET /                           the only model that declares ``openpi``, or that of the query's ``model``
    GET /openpi/{model}             GET /openpi/{model}/{version}
    GET /healthz                    whether the server serves at all

An episode is a sequence. The first message tells the client of the policy. Then each binary message is an observation,
and its answer the actions.
"""

import secrets
import time
from collections.abc import Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgpack

from torchserve_py.apis.live.live_steps import StepCall, StepTemplate
from torchserve_py.apis.live.message_forms import LiveStep
from torchserve_py.apis.live.session_endpoints import SessionEndpoints
from torchserve_py.apis.live.session_ends import UNSUPPORTED_DATA, SessionOver
from torchserve_py.apis.live.socket_session import StepSession
from torchserve_py.apis.openpi.openpi_keys import metadata_of
from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.failures import INTERNAL, EndpointError, Failure, bad_request
from torchserve_py.endpoints.openapi import TEXT, Operation
from torchserve_py.endpoints.responses import AlreadySent, Answer
from torchserve_py.endpoints.routing import READING, PathValues, Route
from torchserve_py.net.http1.request import Request
from torchserve_py.net.websocket import Kind, Message, WebSocket
from ts.protocol.messages import OPENPI

_PLAIN: Final = "text/plain"
_HEALTHZ: Final = Operation(
    "healthz", "Whether the process serves at all, as openpi's policy server says it", (200,), gives={_PLAIN: TEXT}
)
_TIMING: Final = "server_timing"
#: The longest header of a map in msgpack.
_LONGEST_HEADER: Final = 5


class OpenpiSession(StepSession):
    """An episode, from the upgrade to the close."""

    def __init__(self, socket: WebSocket, template: StepTemplate) -> None:
        template.call.protocol = OPENPI
        super().__init__(socket, template, is_text=False)
        self.sequence_id, self.token = f"openpi-{secrets.token_hex(16)}", secrets.token_hex(16)
        #: How long the latest answered observation took (seconds).
        self._took: float | None = None

    async def greet(self) -> None:
        await self.send(msgpack.packb(metadata_of(self.template.model) or {}))

    async def take(self, message: Message) -> None:
        if message.kind is not Kind.binary:
            raise SessionOver(UNSUPPORTED_DATA, "Observations are binary messages of msgpack.")
        await self.wait_for_room()
        self.put_next(LiveStep(self.last + 1, message.data), partial(self._send_actions, time.monotonic()))

    async def tell_failure(self, step: StepCall, failure: Failure) -> None:
        step.cancel()
        await self._socket.send(failure.message.encode(), is_text=True)

    async def _send_actions(self, came_at: float, part: Part) -> None:
        if part.more:
            message = "The model streams its answer; a policy answers in one piece."
            raise EndpointError(Failure(500, INTERNAL, message))
        timing = {"infer_ms": (time.monotonic() - came_at) * 1000}
        if self._took is not None:
            timing["prev_total_ms"] = self._took * 1000
        await self.send(_with_timing(part.body, timing))
        self._took = time.monotonic() - came_at


def _with_timing(actions: bytes | bytearray, timing: Mapping[str, float]) -> bytes:
    """Return a map of msgpack with one more entry; the entries that it has are not read."""
    reader, writer = msgpack.Unpacker(), msgpack.Packer()
    reader.feed(actions[:_LONGEST_HEADER])
    entries = reader.read_map_header()
    head, rest = writer.pack_map_header(entries + 1), memoryview(actions)[reader.tell() :]
    return b"".join((head, rest, writer.pack(_TIMING), writer.pack(timing)))


class OpenpiEndpoints(SessionEndpoints):
    """Opens episodes."""

    def routes(self) -> Iterator[Route]:
        yield Route("/", self._open, ("GET",), applies=_is_handshake)
        for path in ("/openpi/{model_name}", "/openpi/{model_name}/{model_version}"):
            yield Route(path, self._open, ("GET",))
        yield Route("/healthz", self._healthy, READING, token=None, operations=(_HEALTHZ,))

    def _healthy(self, request: Request, values: PathValues) -> Answer:
        return Answer(200, b"OK\n", (("content-type", _PLAIN),))

    def _open(self, request: Request, values: PathValues) -> Coroutine[Any, Any, AlreadySent]:
        """Open an episode."""
        self.offered_to(request)
        version = values.get("model_version")
        name = values.get("model_name") or request.parameter("model")
        model = self.serving.get(name, version) if name else self._only_policy()
        return self.serve(request, model, OpenpiSession, version)

    def _only_policy(self) -> ServedModel:
        """Return the model that declares itself a policy. Raises EndpointError: none does, or several do."""
        policies = [model for model in self.serving.models() if metadata_of(model) is not None]
        if len(policies) == 1:
            return policies[0]
        names = ", ".join(model.name for model in policies)
        told = f"several models declare openpi: {names}" if policies else "no model declares openpi"
        raise bad_request(f"Name the model, as in /openpi/NAME or /?model=NAME: {told} in its model-config.yaml.")


def _is_handshake(request: Request, values: PathValues) -> bool:
    """Whether a request for the path ``/``, which others answer as well, asks for a WebSocket."""
    return request.method == "GET" and request.headers.get("Upgrade", "").lower() == "websocket"
