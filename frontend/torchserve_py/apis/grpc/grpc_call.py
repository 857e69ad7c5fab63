"""A gRPC request that has become a job: its parts become messages, its end a status."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from torchserve_py.apis.grpc.refusals import GrpcRefusal
from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.client_call import Dialect, RepliedCall, Replier
from torchserve_py.net.http2.rpc import LaterReply, Rpc
from torchserve_py.net.turns import running_turns
from ts.protocol.messages import ANSWER_TOKEN
from ts.protocol.request_names import REQUEST_NAME


class GrpcDialect(Dialect, ABC):
    """How one API speaks over gRPC. Unless a class says otherwise, messages are the bytes that the worker made."""

    @abstractmethod
    def refusal(self, error: Exception) -> GrpcRefusal:
        """Return the status of a call that fails with ``error``."""

    def answer(self, call: GrpcCall, part: Part) -> Any:
        """Return the only message of the answer that begins with ``part``, or a coroutine that gives the message.

        Raises EndpointError: the answer is not one message; awaiting the coroutine may raise this, too.
        """
        return part.body

    def messages(self, call: GrpcCall, parts: Iterable[Part]) -> Iterable[Any]:
        """Return the messages for parts of a stream."""
        return [part.body for part in parts]


class GrpcCall(RepliedCall, LaterReply):
    """An exchange with a gRPC client. The transport ends a call with the status that the dialect gives to an error.

    It answers a call of one request, by `answer` with one message or by `stream` with one for each part. Of a call with
    several requests the exchanges are read by `TwoWayCall`.
    """

    __slots__ = ("rpc",)

    dialect: GrpcDialect
    rpc: Rpc

    def received(self, rpc: Rpc, dialect: GrpcDialect, model: ServedModel, version: str | None) -> None:
        """Note what the call has come with, and in which dialect it is answered."""
        self.rpc, self.dialect = rpc, dialect
        self.model, self.version = model, version

    def answer(self, replier: Replier) -> None:
        """Answer the call with one message, without a task unless the dialect needs one."""
        self._name_call()
        self.rpc.on_end.append(self._leave)
        RepliedCall.answer(self, replier)

    def reply(self, first: Part) -> Any:
        """Return the message that begins with the first part, or a coroutine that gives it."""
        self._tell_token(first)
        return self.dialect.answer(self, first)

    async def stream(self) -> None:
        """Answer with a message for each part. Raises EndpointError: the job failed, after parts that were written."""
        self._name_call()
        try:
            first = await self.next_usable()
            self._tell_token(first)
            await self.relay(first)
        finally:
            self.cancel()

    async def write(self, parts: Sequence[Part]) -> None:
        """Send the messages for some parts, each when the client has room for it."""
        await send(self.rpc, self.dialect.messages(self, parts))

    def _tell_token(self, part: Part) -> None:
        """Let the call end with the token of its sequence, of which HTTP's answers have a header."""
        if part.news is not None and part.news.token:
            self.rpc.trailing_metadata = ((ANSWER_TOKEN, part.news.token),)

    def _name_call(self) -> None:
        """Let the log and the failure of a call with one request name the request's job.

        Its client may have named it: then the log, and any end of the call, have the client's name.
        """
        rpc, job_id = self.rpc, self.id
        rpc.log_fields = {"request_id": job_id, **self.log_fields}
        if not rpc.always_sent:
            rpc.sent_on_failure = ((REQUEST_NAME, job_id),)

    def _leave(self, rpc: Rpc) -> None:
        if not self.ended:
            # A thousand calls may end at once. The body counts until the job that holds it is gone.
            release = rpc.reader.hand_over()

            def cancel() -> None:
                self.cancel()
                release()

            running_turns().put_off(cancel)


async def send(rpc: Rpc, messages: Iterable[Any]) -> None:
    """Send messages, each when the client has room for it. A client that stops reading is reset by the transport."""
    for message in messages:
        await rpc.room()
        rpc.send(message)
