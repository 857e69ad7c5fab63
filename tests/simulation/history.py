"""What has happened in a simulated world, for the checker and for people."""

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Step:
    """A step as a client means it, however often it is sent.

    Attributes:
        client: The client's name, which is the name of its sequence, too.
        incarnation: Which of the client's incarnations it belongs to, from 1.
        number: Which step of the incarnation it is, from 1.
        kind: How the client names its steps; see `tests.simulation.clients`.
        starts, ends: Whether it has the marker.
        altered: Whether the body is another than that of the step which the client has sent under this name before.
        asks: Whether the request only asks what has become of the step.
    """

    client: str
    incarnation: int
    number: int
    kind: str
    starts: bool = False
    ends: bool = False
    altered: bool = False
    asks: bool = False

    @property
    def word(self) -> str:
        """The body, which the handler appends to the state."""
        return f"{self.client}.{self.incarnation}.{self.number}{'x' if self.altered else ''}"


class Event(NamedTuple):
    """One thing that has happened.

    ``what`` is ``note``, ``died`` (a process), ``lost`` (states in memory: the names of their sequences, or None for
    all that a server had), ``over`` (a sequence has ended, of which other servers know no more), or of a request:
    ``sent``, ``received`` (by a server, perhaps not for the first time), ``answered`` (by a server), ``heard`` (by the
    client, in time) or ``hung up`` (by the client, as the server sees).
    In a fleet also ``closed`` (as ``over``: its name, and why), ``frozen`` (a server, until that moment), ``doubted``
    (a server takes the one for dead that has a sequence, and is frozen) and ``gave up`` (that has given it up, since
    others have begun it anew).
    ``delivery`` counts the receptions of requests.
    """

    time: float
    who: str
    what: str
    step: Step | None
    delivery: int
    details: Any


class Answer(NamedTuple):
    """An answer of a server: its body, if its status is 200, tells which run of the handler it is from, and the state.

    ``status`` is 0 if there is none, because the server could not be reached.
    """

    status: int
    cause: str
    run: int
    state: tuple[str, ...]
    token: str

    def __str__(self) -> str:
        if self.status == 200:
            return f"200 [{' '.join(self.state)}]"
        return f"{self.status} {self.cause}" if self.status else "unreachable"


class History:
    """Events in the order in which they have happened."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def note(self, time: float, who: str, text: str) -> None:
        """Add something that is not about one request."""
        self.events.append(Event(time, who, "note", None, 0, text))

    def died(self, time: float, who: str) -> None:
        """Add the death of a process."""
        self.events.append(Event(time, who, "died", None, 0, "is dead"))

    def lost(self, time: float, who: str, sequences: frozenset[str] | None) -> None:
        """Add the loss of states in memory, with a worker or with its server."""
        self.events.append(Event(time, who, "lost", None, 0, sequences))

    def frozen(self, time: float, who: str, until: float) -> None:
        """Add that a server of a fleet stands still until a moment."""
        self.events.append(Event(time, who, "frozen", None, 0, until))

    def doubted(self, time: float, who: str, sequence: str) -> None:
        """Add that a server takes another one of its fleet for dead, which has a sequence, and is frozen."""
        self.events.append(Event(time, who, "doubted", None, 0, frozenset((sequence,))))

    def gave_up(self, time: float, who: str, sequence: str) -> None:
        """Add that a server of a fleet gives a sequence up, which another one has begun anew."""
        self.events.append(Event(time, who, "gave up", None, 0, frozenset((sequence,))))

    def over(self, time: float, who: str, sequence: str, reason: str) -> None:
        """Add the end of a sequence at a server of a fleet, and for which reason it is over."""
        self.events.append(Event(time, who, "over", None, 0, frozenset((sequence,))))
        self.events.append(Event(time, who, "closed", None, 0, (sequence, reason)))

    def add(self, time: float, who: str, what: str, step: Step, delivery: int, details: Any = None) -> None:
        """Add something that has happened to a request."""
        self.events.append(Event(time, who, what, step, delivery, details))

    def story(self) -> str:
        """Return the history as a text, a line for each event."""
        return "\n".join(map(_line, self.events))


def _line(event: Event) -> str:
    hours, seconds = divmod(event.time, 3600)
    when = f"{hours:3.0f}:{seconds // 60:02.0f}:{seconds % 60:06.3f}"
    if event.what == "lost":
        names = "all states" if event.details is None else ", ".join(sorted(event.details)) or "no state"
        return f"{when}  {event.who:10} has lost {names}"
    if event.what == "frozen":
        return f"{when}  {event.who:10} is frozen for {event.details - event.time:.1f} s"
    if event.what == "closed":
        return f"{when}  {event.who:10} says of {event.details[0]}: {event.details[1]}"
    if event.what == "gave up":
        return f"{when}  {event.who:10} gives up {', '.join(event.details)}"
    if event.what == "doubted":
        return f"{when}  {event.who:10} takes the server of {', '.join(event.details)} for dead"
    if event.what == "over":
        return f"{when}  {event.who:10} has ended {', '.join(event.details)}"
    if event.step is None:
        return f"{when}  {event.who:10} {event.details}"
    details = "" if event.details is None else f" {event.details}"
    number = f" #{event.delivery}" if event.delivery else ""
    question = "?" if event.step.asks else ""
    return f"{when}  {event.who:10} {event.what} {event.step.word}{question}{number}{details}"
