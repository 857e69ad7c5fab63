"""The network between clients and servers: it drops, delays, doubles and reorders requests and answers.

A copy of a request may arrive after its client has given up, hours later, at another server, or be read by a server
that was frozen meanwhile. Whether a server that reads a request knows already that the client has left is left to
chance, as with a socket.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.simulation.history import Answer, Step
from tests.simulation.servers import Server
from tests.simulation.world import Process, World

#: What the client of an attempt knows if no server answers: the server has certainly not got the request, or perhaps.
UNREACHABLE: Final = Answer(0, "unreachable", 0, (), "")
BROKEN: Final = Answer(0, "broken", 0, (), "")
#: How much later a copy may be (seconds), each length of time equally likely.
_LATE: Final = (1.0, 10.0, 60.0, 600.0, 3 * 3600.0, 20 * 3600.0)
_HANG_UPS_SEEN: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Weather:
    """How bad the network is: probabilities for each request, or answer."""

    dropped: float
    late: float
    doubled: float


class Network:
    """Carries requests and answers."""

    def __init__(self, world: World, servers: Sequence[Server], weather: Weather) -> None:
        self._world, self._servers = world, servers
        self.weather = weather
        #: How many requests are on their way.
        self.under_way = 0
        self.on_rest: Callable[[], None] = lambda: None
        self._deliveries = 0

    async def ask(
        self, client: Process, server: Server, step: Step, headers: Mapping[str, str], patience: float
    ) -> Answer | None:
        """Send a request; return the first answer to it, None if none has come in time."""
        world, weather, chance = self._world, self.weather, self._world.random.random
        heard: asyncio.Future[Answer | None] = client.loop.create_future()
        hang_ups: list[Callable[[], None]] = []

        def reply(answer: Answer) -> None:
            if chance() >= weather.dropped:
                client.after(self._delay(), hear, answer)

        def hear(answer: Answer | None) -> None:
            if not heard.done():
                heard.set_result(answer)

        def send(to: Server) -> None:
            self.under_way += 1
            world.fates.after(self._delay(), self._arrive, to, step, headers, reply, hang_ups)

        world.history.add(world.now, client.name, "sent", step, 0, f"to {server.name}")
        if chance() >= weather.dropped:
            send(server)
        while chance() < weather.doubled:
            send(world.random.choice(self._servers))
        limit = client.loop.call_later(patience, hear, None)
        if (answer := await heard) is not None:
            limit.cancel()
            return answer
        for hang_up in hang_ups:
            if chance() < _HANG_UPS_SEEN:
                hang_up()
        return None

    def _delay(self) -> float:
        random = self._world.random
        if random.random() < self.weather.late:
            return random.random() * random.choice(_LATE)
        return random.uniform(0.0002, 0.003)

    def _arrive(
        self,
        server: Server,
        step: Step,
        headers: Mapping[str, str],
        reply: Callable[[Answer], None],
        hang_ups: list[Callable[[], None]],
    ) -> None:
        """Hand a request to the machine of its server, whose process may be frozen or dead."""
        if not server.is_up:
            self._arrived()
            reply(UNREACHABLE)
            return
        self._deliveries += 1
        delivery, process = self._deliveries, server.process
        is_open = True

        def read() -> None:
            self._note(process, "received", step, delivery)
            server.receive(delivery, step, headers, answer)

        def answer(given: Answer) -> None:
            if not process.is_dead:
                self._note(process, "answered", step, delivery, given)
                end(given)

        def end(given: Answer | None) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                self._arrived()
                if given is not None:
                    reply(given)

        def hang_up() -> None:
            if server.hung_up(delivery):
                self._note(process, "hung up", step, delivery)
                end(None)

        process.on_death.append(lambda: end(BROKEN))
        process.soon(read)
        hang_ups.append(lambda: process.after(self._delay(), hang_up))

    def _arrived(self) -> None:
        self.under_way -= 1
        if not self.under_way:
            self.on_rest()

    def _note(self, process: Process, what: str, step: Step, delivery: int, details: object = None) -> None:
        self._world.history.add(self._world.now, process.name, what, step, delivery, details)
