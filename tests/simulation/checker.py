"""The promise, a rule for each of its sentences; each rule reads a history and says where the sentence is not true.

The body of an answer tells the whole state after the step, and which run of the handler it is from, so that answers
alone show what counts, in which order and how often.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from tests.simulation.history import Answer, Event, History, Step

#: Kinds of clients that number their steps, and those whose steps have ids or numbers.
NUMBERED: Final = frozenset(("numbered", "given"))
NAMED: Final = NUMBERED | {"ids", "counted"}
#: For how many leases a sequence may be said to be at another server.
_MOST_LEASES: Final = 3
#: How long (seconds) a request may remain without an answer, but for the time in which its server is frozen.
_ANSWER_LIMIT: Final = 200.0
#: For how long a server that was frozen may run what has waited for it, before it gives up what others have (seconds).
_GHOST_LIMIT: Final = 10.0
#: How long a move may take (seconds), and how notes of what lets sequences move end.
_MOVE_LIMIT: Final = 30.0
_MOVES: Final = ("worker", "version", "told to stop")
#: Refusals after which it is open whether the step counts.
_UNSURE: Final = frozenset(("outcome_unknown", "response_timeout", "worker_died", "cancelled", "unreachable"))


class Answered(NamedTuple):
    """An answer of a server to a step; ``place`` is that of the event.

    ``ghost`` is the server, if it was taken for dead while it was frozen, and may not know yet that others have begun
    anew what it has.
    """

    place: int
    step: Step
    answer: Answer
    ghost: str = ""


@dataclass
class Reading:
    """A history, sorted by what the rules ask for.

    Attributes:
        durable: Whether a state outlives its worker.
        lifetime: How long a sequence may be idle (seconds).
        lease: For how long a server that is not heard of keeps others from a sequence (seconds).
        versions: How many versions of the model there are.
        require_start: Whether only a start marker, or number 1, begins a sequence.
        damaged: The sequences of which the store was damaged: they need not continue, but what is said of them is true.
        answers: The answers with status 200, in their order.
        of_word: All that servers have answered to each word.
        received: How often each word has reached a server.
        touched: When steps of each client were applied, or repeated.
        steps: The steps by their words.
        losses: The places of events by which states in memory were lost, and whose; None if all were.
            Of what has ended other servers of a fleet know no more, and what a frozen server has may begin anew.
    """

    history: History
    durable: bool
    lifetime: float
    lease: float
    require_start: bool
    versions: int = 1
    damaged: frozenset[str] = frozenset()
    answers: list[Answered] = field(default_factory=list)
    of_word: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    received: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    touched: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[str, Step] = field(default_factory=dict)
    losses: list[tuple[int, frozenset[str] | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        frozen: dict[str, list[tuple[float, float]]] = defaultdict(list)
        doubted: dict[str, list[float]] = defaultdict(list)
        for place, event in enumerate(self.history.events):
            step = event.step
            if event.what == "frozen":
                since, until = frozen[event.who].pop() if frozen[event.who] else (event.time, event.time)
                if until < event.time:  # that time is over
                    frozen[event.who].append((since, until))
                    since = event.time
                frozen[event.who].append((since, max(until, event.details)))
            elif event.what == "doubted":
                for name in event.details:
                    doubted[name].append(event.time)
            elif event.what == "gave up":
                for name in event.details:
                    doubted.pop(name, None)
            if step is None:
                if event.what in {"lost", "doubted", "over"}:
                    self.losses.append((place, event.details))
                continue
            self.steps[step.word] = step
            if event.what == "received":
                self.received[step.word] += 1
            elif event.what == "answered":
                self.of_word[step.word].append(event.details)
                if event.details.status == 200:
                    self.touched[step.client].append(event.time)
                    is_ghost = any(
                        since <= doubt and until <= event.time <= until + _GHOST_LIMIT
                        for since, until in frozen[event.who]
                        for doubt in doubted[step.client]
                    )
                    self.answers.append(Answered(place, step, event.details, event.who if is_ghost else ""))

    def incarnations(self) -> Iterator[list[Answered]]:
        """Return the answers with status 200 of each incarnation, in their order.

        What names an incarnation is its token. A state that is only in memory is another one after each loss, and at
        a server that was frozen.
        """
        found = defaultdict(list)
        for each in self.answers:
            age = self.losses_of(each.step.client, each.place)
            found[each.step.client, each.answer.token, age, each.ghost].append(each)
        yield from found.values()

    def losses_of(self, client: str, before: int, since: int = 0) -> int:
        """Return how often the state of a client was lost before an event, and since another one, by their places."""
        return sum(since <= place < before and (whose is None or client in whose) for place, whose in self.losses)


Found = Iterator[str]
Rule = Callable[[Reading], Found]


def a_step_counts_once(reading: Reading) -> Found:
    """No state has a step twice, whose client has named it; without a name it counts at most as often as it came."""
    for _, step, answer, _ in reading.answers:
        for word in set(answer.state):
            count = answer.state.count(word)
            if count > (1 if step.kind in NAMED else max(reading.received[word], 1)):
                yield f"{word} counts {count} times: {answer}"


def an_answer_is_the_answer_to_its_step(reading: Reading) -> Found:
    """A step is never answered with another step's answer, be it one with the same name and another body."""
    for _, step, answer, _ in reading.answers:
        if step.asks and step.kind not in NUMBERED:
            continue  # an id names a step of each incarnation
        if not answer.state or answer.state[-1] != step.word:
            yield f"the answer to {step.word} is that to another step: {answer}"


def what_was_acknowledged_stays(reading: Reading) -> Found:
    """The states of one incarnation are one history: each begins with all that was acknowledged before."""
    for incarnation in reading.incarnations():
        longest: tuple[str, ...] = ()
        for _, _, answer, _ in incarnation:
            shorter, longer = sorted((longest, answer.state), key=len)
            if longer[: len(shorter)] != shorter:
                yield f"two histories: {' '.join(longest)} | {' '.join(answer.state)}"
            longest = longer


def numbers_come_in_order(reading: Reading) -> Found:
    """The steps of a state are numbered from 1 without a gap: so no number greater than 1 begins a sequence."""
    for _, step, answer, _ in reading.answers:
        if step.kind in NUMBERED:
            numbers = [reading.steps[word].number for word in answer.state]
            if numbers != list(range(1, len(numbers) + 1)):
                yield f"the steps of a state are not in order: {answer}"


def a_step_stays_in_its_incarnation(reading: Reading) -> Found:
    """A step with a number and a token never enters another incarnation than its own."""
    for _, step, answer, _ in reading.answers:
        strangers = [word for word in answer.state if reading.steps[word].incarnation != step.incarnation]
        if step.kind in NUMBERED and strangers:
            yield f"{', '.join(strangers)} entered another incarnation: {answer}"


def a_step_runs_once(reading: Reading) -> Found:
    """A step that is sent again gets the same answer as before, from the same run of the handler."""
    for incarnation in reading.incarnations():
        first: dict[str, Answer] = {}
        for _, step, answer, _ in incarnation:
            if step.kind in NAMED and first.setdefault(step.word, answer) != answer:
                yield f"{step.word} was answered {first[step.word]}, and {answer}, of another run"


def a_refused_step_does_not_count(reading: Reading) -> Found:
    """A step whose every attempt was refused is in no state."""
    refused = {
        word
        for word, answers in reading.of_word.items()
        if len(answers) == reading.received[word] and all(_refuses(each) for each in answers)
    }
    for _, _, answer, _ in reading.answers:
        for word in refused.intersection(answer.state):
            yield f"{word} was refused, and counts: {answer}"


def a_sequence_that_is_in_use_is_not_over(reading: Reading) -> Found:
    """No step of an open sequence is told that the sequence is gone, unless it had been idle for too long.

    Of clients without tokens a late start may end the sequence, and begin another. A state that is only in memory is
    lost with its worker.
    """
    begun: dict[str, int] = {}
    since: dict[str, int] = {}
    for place, event in enumerate(reading.history.events):
        step = event.step
        if step is None or step.kind != "numbered" or not isinstance(event.details, Answer):
            continue
        if event.what == "answered" and event.details.status == 200:
            if begun.get(step.client) != step.incarnation:
                since[step.client] = place
            begun[step.client] = 0 if step.ends else step.incarnation
        elif event.what == "heard" and event.details.status == 410:
            if not reading.durable and step.ends and event.details.cause == "sequence_ended":
                continue  # an attempt of this last step was applied
            if reading.losses_of(step.client, place, since.get(step.client, 0)):
                continue
            is_open = begun.get(step.client) == step.incarnation and not step.altered
            if event.details.cause == "version_gone" or step.client in reading.damaged:
                continue  # the former is true while the servers that have the version are down
            if is_open and not _has_been_idle(reading, step, event.time):
                yield f"{step.word} was told {event.details} at {event.time:.1f}, though its sequence is open"


def nothing_in_a_fleet_expires_too_soon(reading: Reading) -> Found:
    """A sequence expires only once it was idle for as long as it may be, wherever it was meanwhile."""
    used: dict[str, float] = {}
    answers = {each.place: each for each in reading.answers}
    for place, event in enumerate(reading.history.events):
        if (answered := answers.get(place)) is not None and not answered.ghost:
            used[answered.step.client] = event.time
        elif event.what == "closed" and event.details[1] == "idle":
            name = event.details[0]
            if (idle := event.time - used.get(name, -reading.lifetime)) < reading.lifetime * 0.99:
                yield f"{name} expired at {event.time:.1f}, {idle:.1f} s after it was used"


def what_is_idle_in_a_fleet_expires(reading: Reading) -> Found:
    """No step continues a sequence that was idle for too long, be it in a file; a move begins the time anew.

    A server that stands still does not count that time.
    """
    slack, is_fleet, received = _MOVE_LIMIT, False, dict[int, float]()
    touched: dict[str, float] = defaultdict(float)
    moved = 0.0
    for event in reading.history.events:
        if event.what == "frozen":
            slack += event.details - event.time
        is_fleet |= event.what == "closed"
        if event.what == "note" and event.details.endswith(_MOVES):
            moved = event.time
        elif event.step is not None and event.what == "received":
            received[event.delivery] = event.time
        elif event.step is not None and event.what == "answered":
            idle = received[event.delivery] - max(touched[event.step.client], moved)
            if (
                is_fleet
                and event.details.status == 200
                and len(event.details.state) > 1
                and idle > reading.lifetime + slack
            ):
                yield f"{event.step.word} continued what was idle for {idle:.1f} s: {event.details}"
            touched[event.step.client] = event.time


def a_lease_ends(reading: Reading) -> Found:
    """A server that holds a sequence without using it keeps others from it for a lease at most, or some more.

    What nobody was told of for a lease may have been let go of and taken again meanwhile.
    """
    since: dict[str, float] = {}
    told: dict[str, float] = {}
    for event in reading.history.events:
        step = event.step
        if step is None or event.what != "answered" or reading.versions > 1:
            continue
        if event.details.cause != "sequence_moved" or event.time - told.get(step.client, 0.0) > reading.lease:
            since.pop(step.client, None)
        told[step.client] = event.time
        if event.details.cause != "sequence_moved":
            continue
        if event.time - since.setdefault(step.client, event.time) > reading.lease * _MOST_LEASES:
            yield f"{step.client} was held by another server from {since[step.client]:.0f} s to {event.time:.0f} s"


def what_was_lost_is_said(reading: Reading) -> Found:
    """A sequence whose state was lost with its worker does not begin anew before somebody starts it again.

    A server that was lost itself knows no more of what it had, unless others of its fleet know.
    """
    lost: dict[str, float] = {}
    for event in reading.history.events:
        step = event.step
        if event.what == "lost":
            if event.details is None:
                lost.clear()
            else:
                lost.update(dict.fromkeys(event.details, event.time))
        elif step is None or step.client not in lost:
            continue
        elif event.what == "received" and _may_begin(step):  # though it may begin no sequence, since it fails
            del lost[step.client]
        elif event.what == "answered" and event.details.status == 200:
            since, first = lost.pop(step.client), reading.steps[event.details.state[0]]
            if not _may_begin(first):
                yield f"{first.word} began anew what was lost at {since:.1f}: {event.details}"


def nothing_else_is_said_to_be_lost(reading: Reading) -> Found:
    """A step is told that its sequence is lost only if a worker or a server was lost that had its state."""
    for place, event in enumerate(reading.history.events):
        if event.step is None or event.what != "answered" or reading.durable:
            continue
        if event.details.cause == "sequence_lost" and not reading.losses_of(event.step.client, place):
            yield f"{event.step.word} was told that its state is lost"


def only_a_start_begins_a_sequence(reading: Reading) -> Found:
    """Where a start is required, every state begins with a step that has the start marker, or number 1."""
    for _, step, answer, _ in reading.answers:
        first = reading.steps[answer.state[0]]
        if reading.require_start and step.kind not in NUMBERED and not first.starts:
            yield f"{first.word} began a sequence without a start marker: {answer}"


def nothing_is_open_after_the_end(reading: Reading) -> Found:
    """Once a client was told that its last step was applied, the next sequence begins without a start marker.

    A server without a store that was restarted does not know a late copy of a first step. Nor does any server know a
    first step that was given up before it was applied: a late copy begins the sequence that its client never had.
    """
    latest: dict[str, int] = defaultdict(int)  # the incarnation that each client is in
    begun: set[str] = set()
    given_up: set[str] = set()  # clients of whom the open sequence is one that they had given up
    for place, event in enumerate(reading.history.events):
        step = event.step
        if step is None or step.kind != "numbered":
            continue
        if event.what == "sent":
            latest[step.client] = max(latest[step.client], step.incarnation)
        if event.what != "answered":
            continue
        if event.details.status == 200 and step.number == 1 and step.word not in begun:
            begun.add(step.word)
            if step.incarnation < latest[step.client]:
                given_up.add(step.client)
            else:
                given_up.discard(step.client)
        if reading.losses_of(step.client, place):
            continue
        if event.details.cause == "sequence_open" and step.client not in given_up:
            yield f"{step.word} was told that a sequence is open"


def nobody_skips(reading: Reading) -> Found:
    """A step that is sent after the one before it was acknowledged is not told of a gap."""
    acknowledged: set[tuple[str, int, int]] = set()
    after: set[str] = set()
    for place, event in enumerate(reading.history.events):
        step = event.step
        if step is None or step.kind != "numbered":
            continue
        if event.what == "sent" and (step.client, step.incarnation, step.number - 1) in acknowledged:
            after.add(step.word)
        elif event.what == "heard" and isinstance(event.details, Answer):
            if event.details.status == 200:
                acknowledged.add((step.client, step.incarnation, step.number))
            elif event.details.cause == "step_gap" and step.word in after:
                if reading.losses_of(step.client, place):
                    continue
                yield f"{step.word} was told of a gap"


def what_was_acknowledged_is_not_denied(reading: Reading) -> Found:
    """Who asks after a step that was acknowledged is not told that it was not applied."""
    acknowledged: dict[str, str] = {}
    for event in reading.history.events:
        step = event.step
        if step is not None and event.what == "answered" and step.kind in NAMED:
            if event.details.status == 200:
                acknowledged[step.word] = event.details.token
            elif event.details.cause == "not_applied" and step.kind == "numbered" and step.word in acknowledged:
                yield f"{step.word} was acknowledged, and then said not to have been applied"


def every_request_is_answered_once(reading: Reading) -> Found:
    """Every request that a server has read gets one answer in time, unless its client leaves or the server dies."""
    open_: dict[int, Event] = {}
    deaths: dict[str, list[float]] = defaultdict(list)
    answered: dict[int, Event] = {}
    for event in reading.history.events:
        if event.what == "received":
            open_[event.delivery] = event
        elif event.what == "hung up":
            open_.pop(event.delivery, None)
        elif event.what == "answered":
            if event.delivery in answered:
                yield f"request #{event.delivery} was answered twice"
            answered[event.delivery] = event
            open_.pop(event.delivery, None)
        elif event.what == "died":
            deaths[event.who].append(event.time)
            for delivery in [each for each, received in open_.items() if received.who == event.who]:
                del open_[delivery]
    for event in open_.values():
        yield f"request #{event.delivery} ({event.step and event.step.word}) was never answered by {event.who}"


def _may_begin(step: Step) -> bool:
    """Whether a step may begin a sequence of which the state was lost."""
    return step.starts or (step.kind in NUMBERED and step.number == 1)


def _refuses(answer: Answer) -> bool:
    return answer.status != 200 and answer.cause not in _UNSURE and answer.cause != "step_applied"


def _has_been_idle(reading: Reading, step: Step, until: float) -> bool:
    """Whether the sequence may have been idle for too long between two of its answers before that time."""
    times = [0.0, *(time for time in reading.touched[step.client] if time <= until), until]
    return any(later - earlier > reading.lifetime * 0.9 for earlier, later in pairwise(times))


RULES: Final[tuple[Rule, ...]] = (
    a_step_counts_once,
    an_answer_is_the_answer_to_its_step,
    what_was_acknowledged_stays,
    numbers_come_in_order,
    a_step_stays_in_its_incarnation,
    a_step_runs_once,
    a_refused_step_does_not_count,
    a_sequence_that_is_in_use_is_not_over,
    nothing_in_a_fleet_expires_too_soon,
    what_is_idle_in_a_fleet_expires,
    a_lease_ends,
    what_was_lost_is_said,
    nothing_else_is_said_to_be_lost,
    only_a_start_begins_a_sequence,
    nothing_is_open_after_the_end,
    nobody_skips,
    what_was_acknowledged_is_not_denied,
    every_request_is_answered_once,
)


def check(reading: Reading) -> list[str]:
    """Return what contradicts the promise, each with the name of the rule."""
    return [f"{rule.__name__}: {text}" for rule in RULES for text in dict.fromkeys(rule(reading))]
