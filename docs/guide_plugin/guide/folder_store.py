"""States of sequences in a folder, for one server and one version of a model."""

import fcntl
import hashlib
import pickle
import threading
from collections import namedtuple
from contextlib import contextmanager
from pathlib import Path

from ts.sequences.steps.record import SequenceRecord
from ts.sequences.steps.state_log import LogEntry
from ts.sequences.steps.stores.store import JUST_NOW, Acquired, Commit, Lease, StoreError

Stored = namedtuple("Stored", "fence record state log answers", defaults=(0, None, None, {}, {}))


def open_store(settings, cache):
    return FolderStore(Path(cache["path"]))


class FolderStore:
    def __init__(self, folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder, self._lock = folder, (folder / "lock").open("w")

    @contextmanager
    def _locked(self):
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            yield
        except OSError as error:
            raise StoreError(f"the folder {self._folder} cannot be used: {error.strerror}") from error
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _file(self, sequence_id):
        return self._folder / hashlib.sha256(sequence_id.encode()).hexdigest()

    def _read(self, sequence_id):
        file = self._file(sequence_id)
        return pickle.loads(file.read_bytes()) if file.exists() else Stored()

    def _write(self, sequence_id, stored):
        new = self._file(sequence_id).with_suffix(".new")
        new.write_bytes(pickle.dumps(stored))
        new.replace(self._file(sequence_id))  # who reads meanwhile gets the old one or the new one

    def acquire(self, sequence_ids, active_since=JUST_NOW):
        with self._locked():
            return [self._acquire(each) for each in sequence_ids]

    def _acquire(self, sequence_id):
        stored = self._read(sequence_id)
        lease = Lease(sequence_id, stored.fence + 1, stored.record or SequenceRecord(), fresh_until=float("inf"))
        self._write(sequence_id, stored._replace(fence=lease.fence))  # who had it before can write no more
        return Acquired(lease, stored.state, log=[*map(LogEntry, stored.log, stored.log.values())])

    def renew(self, leases):
        return [self._read(each.sequence_id).fence == each.fence for each in leases]

    def commit(self, commits):
        with self._locked():
            return [self._commit(each) for each in commits]

    def _commit(self, commit):
        lease, stored = commit.lease, self._read(commit.lease.sequence_id)
        if stored.fence != lease.fence:
            return False
        # The steps have written the state whole, or have only appended to it.
        state, log = (commit.state, {}) if commit.log is None else (stored.state, stored.log | dict(commit.log))
        answers = ({} if commit.begins else stored.answers) | {each.step.number: each.answer for each in commit.kept}
        answers = {number: answer for number, answer in answers.items() if number in (lease.record.kept or ())}
        stored = Stored(lease.fence, lease.record, None if commit.closed else state, log, answers)
        self._write(lease.sequence_id, stored)
        return True

    def settle(self, commits):
        return [self._read(each.lease.sequence_id).record == each.lease.record for each in commits]

    def peek(self, sequence_id):
        return self._read(sequence_id).record

    def find(self, sequence_id, incarnation, number):
        stored = self._read(sequence_id)
        return stored.answers.get(number) if stored.record and stored.record.incarnation == incarnation else None

    def end(self, leases):
        self.commit([Commit(each, None, each.record.closed, (), b"", begins=False) for each in leases])

    tidy = sweep = close = release = begin_reading = end_reading = lambda *_: None  # nobody else takes sequences

    def watch(self, reports):
        return NobodyAsks()


class NobodyAsks(threading.Event):
    close = threading.Event.set

    def wait(self):
        super().wait(60)
        return ()
