"""A gRPC request that has become a job: its parts become messages, its end a status."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from torchserve_py.core.serving import ServedModel, Serving
from torchserve_py.doors.grpc.refusals import Refusal
from torchserve_py.doors.pipeline import Dialect, Exchange
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.jobs.parts import Part
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http2.call import Call
from torchserve_py.transport.http2.methods import LATER
from torchserve_py.transport.turns import running_turns


class GrpcDialect(Dialect, ABC):
    """How one API speaks over gRPC. Unless a class says otherwise, messages are the bytes that the worker made."""

    @abstractmethod
    def refusal(self, error: Exception) -> Refusal:
        """Return the status of a call that fails with ``error``."""

    def answer(self, exchange: GrpcExchange, part: Part) -> Any:
        """Return the only message of the answer that begins with ``part``, or a coroutine that gives the message.

        Raises DoorError: the answer is not one message; awaiting the coroutine may raise this, too.
        """
        return part.body

    def messages(self, exchange: GrpcExchange, parts: Iterable[Part]) -> Iterable[Any]:
        """Return the messages for parts of a stream."""
        return [part.body for part in parts]


class GrpcExchange(Exchange):
    """An exchange with a gRPC client. The transport ends a call with the status that the dialect gives to an error."""

    __slots__ = ("call",)

    dialect: GrpcDialect

    def __init__(
        self,
        call: Call,
        dialect: GrpcDialect,
        serving: Serving,
        model: ServedModel,
        inference: InferenceRequest,
        version: str | None = None,
    ) -> None:
        """Submit ``inference``, which came with ``call``, to ``model``."""
        super().__init__(dialect, model, model.name, inference, serving.submit(model, inference), version)
        self.call = call

    def answer(self) -> object:
        """Answer the call with one message, without a task unless the dialect needs one; return `LATER`."""
        self.call.on_end.append(self._leave)
        self.parts.when_first(self._answer_with)
        return LATER

    async def stream(self) -> None:
        """Answer with a message for each part. Raises DoorError: the job failed, after the parts that were written."""
        try:
            await self.relay(await self.next())
        finally:
            self.cancel()

    async def write(self, parts: Sequence[Part]) -> None:
        """Send the messages for some parts, each when the client has room for it."""
        await send(self.call, self.dialect.messages(self, parts))

    def _answer_with(self, outcome: Part | Cause) -> None:
        """Answer with the first part or a failure. Raises nothing: the dispatcher calls this amid its own work."""
        try:
            self.call.follow(self.dialect.answer(self, self.usable(outcome)))
        except Exception as error:
            self.call.raised(error)

    def _leave(self, call: Call) -> None:
        if not self.parts.ended:
            running_turns().put_off(self.parts.cancel)  # a thousand calls may end at once


async def send(call: Call, messages: Iterable[Any]) -> None:
    """Send messages, each when the client has room for it. A client that stops reading is reset by the transport."""
    for message in messages:
        await call.room()
        call.send(message)
