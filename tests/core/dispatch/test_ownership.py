"""Sequences of a model with several versions, in random interleavings of all that decides which version has one.

Real dispatchers, schedulers and `ModelVersions`; workers and the store are doubles. At every moment one version has a
sequence, and whatever happens to versions, every step learns its fate: an answer, or a cause.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.dispatch.shell import Shell, durable, told

from torchserve_py.base.causes import Cause
from torchserve_py.core.dispatch.ownership import loses_states
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.models.model import Model
from torchserve_py.core.models.served_models import ModelVersions
from torchserve_py.core.workers.worker import Worker

SEQUENCES = ("s", "t")
picks = st.integers(0, 1_000)


class Version(Shell):
    """A version with one worker, which continues the sequences of versions with lower even numbers."""

    def continues(self, other: "Version") -> bool:
        return int(other.version) % 2 == 0 and int(other.version) < int(self.version)


class OwnersMachine(RuleBasedStateMachine):
    """The versions of one model on one server."""

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.calls: list[Call] = []
        self.stored: dict[str, str] = {}  # the names of the versions that the store has sequences of
        self.all: list[Version] = []
        self.do(self.set_up)

    def set_up(self) -> None:
        first = self.make()
        self.versions = ModelVersions(cast("Model", first), lambda: None)

    def make(self) -> Version:
        self.all.append(Version(durable(), version=str(len(self.all))))
        return self.all[-1]

    def do(self, action: Callable[[], Any]) -> Any:
        """Do something on the event loop, and what follows from it at once."""

        async def act() -> Any:
            result = action()
            await asyncio.sleep(0)
            return result

        return self.loop.run_until_complete(act())

    @property
    def served(self) -> list[Version]:
        return [cast("Version", each) for each in self.versions.models.values()]

    # Clients

    @rule(sequence=st.sampled_from(SEQUENCES), pick=picks, named=st.sampled_from([False, False, True]))
    def step(self, sequence: str, pick: int, named: bool) -> None:
        call = Call((), "x", "text/plain", sequence=SequenceRequest(sequence, False, False, ()), by_default=not named)
        candidates = self.served if named else [cast("Version", each) for each in self.versions.staying or self.served]
        meant = candidates[pick % len(candidates)]
        self.calls.append(call)
        self.do(lambda: self.arrive(call, sequence, meant))

    def arrive(self, call: Call, sequence: str, meant: Version) -> None:
        chosen = self.versions.choose_for(call, sequence, cast("Model", meant))
        if chosen is None:
            call.fail(Cause.sequence_moved)
        else:
            chosen.dispatcher.submit(call)

    @precondition(lambda self: self.calls)
    @rule(pick=picks)
    def client_leaves(self, pick: int) -> None:
        self.do(self.calls[pick % len(self.calls)].cancel)

    # Workers

    @precondition(lambda self: any(each.workers[0].in_flight for each in self.all))
    @rule(pick=picks, migrates=st.booleans())
    def worker_answers(self, pick: int, migrates: bool) -> None:
        busy = [each for each in self.all if each.workers[0].in_flight]
        self.do(lambda: self.answer(busy[pick % len(busy)], migrates=migrates))

    def answer(self, version: Version, *, migrates: bool) -> None:
        """A worker answers its oldest step, if the sequence is its version's or can be."""
        (worker,) = version.workers
        job = next(iter(version.dispatcher.jobs_of(cast("Worker", worker)).values()))
        sequence = str(job.sequence_id)
        owner = self.stored.get(sequence, version.version)
        if owner == version.version or (migrates and version.continues(self.all[int(owner)])):
            self.stored[sequence] = version.version
            version.answer(worker, job)
        else:
            is_served = owner in self.versions.models
            news = told("sequence_moved" if is_served else "version_gone", version=owner)
            version.result(worker, job.id, False, 409, "", [], b"", "why", news=news)

    # Operators

    @precondition(lambda self: len(self.all) < 6)
    @rule()
    def register(self) -> None:
        self.do(lambda: self.versions.add(cast("Model", self.make())))

    @precondition(lambda self: self.versions.staying)
    @rule(pick=picks)
    def choose_default(self, pick: int) -> None:
        self.versions.choose(self.versions.staying[pick % len(self.versions.staying)])

    @precondition(lambda self: len(self.versions.staying) > 1)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        """A version is to go: the default version gets the sequences that it continues; the others run out."""
        leaving = next(each for each in self.versions.staying if each is not self.versions.default)
        self.do(lambda: self.start_to_leave(leaving))

    def start_to_leave(self, leaving: Model) -> None:
        self.versions.leaving[leaving] = self.loop.create_future()
        to = self.versions.default
        for sequence in list(leaving.dispatcher.scheduler.sequences()):
            if to.continues(leaving):
                leaving.dispatcher.move(sequence.id, to, self.versions.ownership.move(sequence, to))
        leaving.dispatcher.refuse_new_jobs(Cause.unregistered, runs_out=True)

    @precondition(lambda self: len(self.versions.models) > 1)
    @rule(pick=picks)
    def unload(self, pick: int) -> None:
        """A version is gone at once, and ends what it has."""
        gone = self.served[pick % len(self.served)]
        self.versions.remove(cast("Model", gone))
        assert not loses_states(gone, self.served)
        self.loop.run_until_complete(gone.dispatcher.close(Cause.unregistered))

    @precondition(lambda self: len(self.calls) > 12)
    @rule()
    def server_drains(self) -> None:
        self.do(lambda: [each.dispatcher.refuse_new_jobs(Cause.draining) for each in self.served])

    # What always holds

    @invariant()
    def a_sequence_has_one_owner(self) -> None:
        for sequence in SEQUENCES:
            open_at = [each.version for each in self.all if each.dispatcher.scheduler.sequence(sequence) is not None]
            assert len(open_at) <= 1, f"versions {open_at} have {sequence} open"

    @invariant()
    def a_step_is_at_one_version_until_it_has_its_outcome(self) -> None:
        for call in self.calls:
            at = [each.version for each in self.all if call.id in each.dispatcher.scheduler.jobs]
            assert len(at) == 1 or (not at and call.ended), f"{call.id} is at versions {at}, ended: {call.ended}"

    def teardown(self) -> None:
        for _ in range(1_000):
            busy = [each for each in self.all if each.workers[0].in_flight]
            if not busy:
                break
            self.do(lambda: self.answer(busy[0], migrates=True))  # noqa: B023 - it is called at once
        assert all(call.ended for call in self.calls), "a step waits for ever"
        self.loop.close()


TestOwners = OwnersMachine.TestCase
