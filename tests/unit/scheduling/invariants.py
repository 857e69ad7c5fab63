"""What must be true of a scheduler between any two events. For tests: it looks at everything, so it costs O(n)."""

from torchserve_py.scheduling.admission import WhileBelow
from torchserve_py.scheduling.job import CANCELLED, RUNNING, STREAMING, WAITING, Job
from torchserve_py.scheduling.lane import Worker
from torchserve_py.scheduling.scheduler import Scheduler
from torchserve_py.scheduling.sequence import CLOSED, IDLE, PENDING, READY, Sequence, SequenceLane
from torchserve_py.scheduling.sequence import RUNNING as SEQUENCE_RUNNING
from torchserve_py.scheduling.sequences import Sequences


def validate(scheduler: Scheduler) -> None:
    """Raise AssertionError if the scheduler contradicts itself."""
    ledger = scheduler._ledger
    assert not ledger.effects, f"effects were left over: {ledger.effects}"
    assert not ledger.stirred, f"lanes were left to serve: {ledger.stirred}"
    for worker in scheduler._workers.values():
        _validate_worker(scheduler, worker)
    for job in ledger.jobs.values():
        _validate_job(scheduler, job)
    assert scheduler.queued + scheduler.in_flight == len(ledger.jobs)
    if isinstance(scheduler._source, Sequences):
        _validate_sequences(scheduler._source)


def _validate_worker(scheduler: Scheduler, worker: Worker) -> None:
    room = scheduler._admission.room(worker)
    assert room >= 0, f"{worker} has more in flight than it may"
    assert (worker.id in worker.lane.free) == (room > 0 and not worker.retiring), f"{worker} free or not"
    assert worker.in_flight or not worker.retiring, f"{worker} should have been released"
    if isinstance(scheduler._admission, WhileBelow) and worker.lane.free and worker.lane.items:
        first = next(iter(worker.lane.items))
        assert isinstance(first, Sequence), f"{first} waits although {worker} has room"
        assert not first.in_flight, f"{first} may join but waits"
    for job in worker.in_flight.values():
        assert job.worker_id == worker.id
        assert job.state in (RUNNING, STREAMING, CANCELLED), f"{job} is in flight"


def _validate_job(scheduler: Scheduler, job: Job) -> None:
    if job.state is WAITING:
        if job.alone:
            assert job in scheduler._alone.lane.items
        elif isinstance(scheduler._source, Sequences):
            assert job in scheduler._source.open[job.sequence_id or ""].waiting
        else:
            assert job in scheduler._source.lane.items  # type: ignore[attr-defined]
        assert job.watched or job.expires_at is None, f"{job} would never expire"
    else:
        assert job.state in (RUNNING, STREAMING, CANCELLED), f"{job} is over but was kept"
        assert job.id in scheduler._workers[job.worker_id or ""].in_flight


def _validate_sequences(source: Sequences) -> None:
    lanes = {id(sequence.lane): sequence.lane for sequence in source.open.values()}
    for lane in [source._pending, *source._lanes.values(), *lanes.values()]:
        bound = [sequence for sequence in source.open.values() if sequence.lane is lane]
        assert lane.bound == len(bound)
        assert lane.running == sum(bool(sequence.in_flight) for sequence in bound) <= lane.batch_size
        assert set(lane.items) == {sequence for sequence in bound if sequence.state in (READY, PENDING)}
    for sequence_id, sequence in source.open.items():
        assert sequence.id == sequence_id
        assert sequence.watched, f"{sequence} would never end"
        _validate_sequence(source, sequence)


def _validate_sequence(source: Sequences, sequence: Sequence) -> None:
    assert sequence.state is not CLOSED, f"{sequence} is closed but was kept"
    assert (sequence.state is PENDING) == (sequence.lane is source._pending)
    assert isinstance(sequence.lane, SequenceLane)
    assert all(job.state is WAITING and job.sequence_id == sequence.id for job in sequence.waiting)
    assert len(sequence.in_flight) <= (2 if source._joins else 1), f"{sequence} has too much in flight"
    assert sequence.ending is None or sequence.in_flight, f"{sequence} should have closed"
    match sequence.state:
        case s if s is PENDING:
            assert sequence.waiting and not sequence.in_flight
        case s if s is READY:
            assert sequence.waiting and len(sequence.in_flight) <= source._joins
        case s if s is SEQUENCE_RUNNING:
            assert sequence.in_flight and not (sequence.waiting and source._may_join(sequence))
        case s if s is IDLE:
            assert not sequence.waiting and not sequence.in_flight
