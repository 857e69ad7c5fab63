"""What must be true of a scheduler between any two events. It looks at everything, so it costs O(n)."""

from torchserve_py.core.scheduling.fifo import Fifo
from torchserve_py.core.scheduling.job import AHEAD, CANCELLED, RUNNING, STREAMING, WAITING, Job
from torchserve_py.core.scheduling.lane import WorkerLoad
from torchserve_py.core.scheduling.scheduler import Scheduler
from torchserve_py.core.scheduling.sequence import CLOSED, HELD, IDLE, MOVING, PENDING, READY, Sequence, SequenceLane
from torchserve_py.core.scheduling.sequence import RUNNING as SEQUENCE_RUNNING
from torchserve_py.core.scheduling.sequence_source import Sequences


def validate(scheduler: Scheduler, now: float) -> None:
    """Raise AssertionError if the scheduler contradicts itself, or holds back what could run."""
    shared = scheduler._shared
    assert not shared.effects, f"effects were left over: {shared.effects}"
    assert not shared.lanes_to_serve, f"lanes were left to serve: {shared.lanes_to_serve}"
    for worker in scheduler._workers.values():
        validate_worker(scheduler, worker, now)
    for job in shared.jobs.values():
        validate_job(scheduler, job)
    assert shared.alone.keys() <= shared.jobs.keys()
    assert scheduler.queued + scheduler.in_flight == len(shared.jobs)
    assert not scheduler.queued or scheduler._wanted_workers or scheduler._any_worker(), "jobs wait for no worker"
    if isinstance(scheduler._source, Sequences):
        validate_sequences(scheduler._source)
    else:
        waiting = list(scheduler._source.lane.items)
        assert waiting == sorted(waiting, key=lambda job: job.number), "jobs are not in their order"
    for lane in scheduler._source.lanes:
        earliest = next(iter(lane.items.values()), 0.0)
        assert all(earliest <= takeable_at for takeable_at in lane.items.values()), "a batch would wait too long"
    validate_deadlines(scheduler, now)


def validate_deadlines(scheduler: Scheduler, now: float) -> None:
    deadline = scheduler.next_deadline()
    assert deadline is None or deadline > now, "what was due has not been done"
    deadlines = scheduler._shared.deadlines
    due_at = {number: at for at, number in deadlines.heap}
    assert len(due_at) == len(deadlines), "two entries have the same number"
    assert all(thing.timer == number for number, thing in deadlines._things.items()), "a timer has another number"
    entries = {id(thing): due_at[number] for number, thing in deadlines._things.items()}
    source = scheduler._source
    lanes = {worker.lane for worker in scheduler._workers.values()}
    sequences = source.open.values() if isinstance(source, Sequences) else ()
    for thing in (*scheduler._shared.jobs.values(), *lanes, *sequences, *scheduler._workers.values()):
        assert bool(thing.timer) == (id(thing) in entries)
        due = thing.due(now)
        assert due is None or not thing.timer or entries[id(thing)] <= due, f"{thing} would be late"


def validate_worker(scheduler: Scheduler, worker: WorkerLoad, now: float) -> None:
    room = scheduler._assignment.admission.room(worker)
    assert room >= 0, f"{worker} has more in flight than it may"
    takes = not (worker.retiring or worker.is_shut)
    assert worker.is_shut == (worker.rests or worker.alone is not None) or worker.retiring
    is_kept = worker.alone is None or (worker.alone.state in (RUNNING, CANCELLED) and now < worker.alone_until)
    assert is_kept, f"{worker} is kept for nothing"
    assert (worker.id in worker.lane.free) == (room > 0 and takes), f"{worker} is free or is not"
    assert worker.in_flight or not worker.retiring, f"{worker} should have been released"
    validate_ahead(scheduler, worker, now)
    for job in worker.in_flight.values():
        assert job.worker_id == worker.id
        assert job.state in (RUNNING, STREAMING, CANCELLED), f"{job} is in flight"
    if worker.lane.free:
        assert not scheduler._unbatched.lane.items, f"a describe or a suspect waits although {worker} has room"
    if worker.lane.free and worker.lane.items and not scheduler._assignment.admission.waits(worker.lane, now):
        assert isinstance(worker.lane, SequenceLane), f"jobs wait although {worker} has room"
        assert worker.lane.running == worker.lane.most_running, f"sequences wait although {worker} has room"
        assert not any(sequence.in_flight for sequence in worker.lane.items), f"a joiner waits for {worker}"


def validate_ahead(scheduler: Scheduler, worker: WorkerLoad, now: float) -> None:
    ahead = [job for batch in worker.ahead for job in batch.jobs]
    lane = worker.lane
    assert all(job.state is AHEAD and job.worker_id == worker.id for job in ahead)
    assert len(ahead) <= scheduler._assignment.batch_size
    assert not ahead or (worker.in_flight and not worker.retiring), f"{worker} should have begun what it was sent ahead"
    assert not ahead or not lane.free, f"{worker} was sent a batch ahead although others are idle"
    of_lane = [other for other in scheduler._workers.values() if other.lane is lane]
    assert list(lane.ahead.values()) == sorted(
        (other for other in of_lane if other.ahead), key=lambda other: other.ahead[0].number
    )
    assert lane.jobs_ahead == sum(len(batch.jobs) for other in of_lane for batch in other.ahead)
    assert lane.busy.keys() <= {other.id for other in of_lane if other.in_flight and not other.retiring}
    if worker.id in lane.busy:
        assert len(ahead) < scheduler._assignment.batch_size
        assert scheduler._shared.alone or not (lane.items and ahead), (
            f"jobs wait that could join what {worker} was sent ahead"
        )


def validate_job(scheduler: Scheduler, job: Job) -> None:
    shared = scheduler._shared
    assert job.id not in shared.alone or job.state is WAITING
    if job.state is AHEAD:
        assert any(job in batch.jobs for batch in scheduler._workers[job.worker_id].ahead)
        assert job.timer or job.expires_at is None or job.sends, f"{job} would never expire"
        return
    if job.state is not WAITING:
        assert job.state in (RUNNING, STREAMING, CANCELLED), f"{job} is over but was kept"
        assert job.id in scheduler._workers[job.worker_id].in_flight
        return
    assert job.timer or job.expires_at is None or job.sends, f"{job} would never expire"
    assert (job.id in shared.alone) == (job.unbatched or job.is_suspect), f"{job} waits with others, or without"
    source = scheduler._assignment.source_of(job)
    if isinstance(source, Fifo):
        assert job in source.lane.items
    elif isinstance(source, Sequences):
        sequence = source.open[job.sequence_id]
        assert (job in sequence.waiting) != (job in sequence.successors)


def validate_sequences(source: Sequences) -> None:
    lanes = {id(lane): lane for lane in (*source._lanes.values(), *(s.lane for s in source.open.values()))}
    for lane in [source._pending, *lanes.values()]:
        bound = [sequence for sequence in source.open.values() if sequence.lane is lane]
        assert set(lane.bound) == set(bound)
        assert lane.running == sum(bool(sequence.in_flight) for sequence in bound) <= lane.most_running
        assert set(lane.items) == {sequence for sequence in bound if sequence.state in (READY, PENDING)}
    emptiest = source._emptiest.get()
    assert emptiest is min(source._lanes.values(), key=lambda lane: lane.members, default=None)
    assert len(source._emptiest) <= max(64, 2 * len(source._lanes)) + 1, "entries of former numbers pile up"
    if source._pending.items:
        assert all(lane.members >= source._slots for lane in source._lanes.values()), "a slot is free, a sequence waits"
    for sequence_id, sequence in source.open.items():
        assert sequence.id == sequence_id
        assert sequence.timer, f"{sequence} would never end"
        validate_sequence(source, sequence)


def validate_sequence(source: Sequences, sequence: Sequence) -> None:
    waiting, in_flight = len(sequence.waiting), len(sequence.in_flight)
    assert sequence.state is not CLOSED, f"{sequence} is closed but was kept"
    assert (sequence.state is PENDING) == (sequence.lane is source._pending)
    queued = (*sequence.waiting, *sequence.successors)
    assert all(job.state is WAITING and job.sequence_id == sequence.id for job in queued)
    waits = waiting or in_flight or sequence.state is MOVING  # it closes once it has moved, or stays
    assert waits or not sequence.successors, f"nothing is left to wait for before {sequence.successors}"
    assert in_flight <= (2 if source._joins else 1), f"{sequence} has too much in flight"
    assert sequence.ending is None or in_flight, f"{sequence} should have closed"
    right = {
        PENDING: waiting and not in_flight,
        READY: waiting and in_flight <= source._joins,
        SEQUENCE_RUNNING: in_flight and not (waiting and source._may_join(sequence)),
        HELD: waiting and not in_flight,
        MOVING: True,
        IDLE: not waiting and not in_flight,
    }
    assert right[sequence.state], f"{sequence} is not {sequence.state}"
