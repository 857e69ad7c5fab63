"""What becomes of a version's workers while it is in a canary: how many have died, and how much memory they have."""

from __future__ import annotations

from torchserve_py.core.serving.serving import ModelStatus


class VersionWatch:
    """The workers of one version, as they were seen last."""

    def __init__(self, status: ModelStatus) -> None:
        self._deaths = {worker.id: worker.deaths for worker in status.workers}
        #: How many workers there are.
        self.workers = len(status.workers)

    def died(self, status: ModelStatus) -> int:
        """Return how many workers have died since the last call."""
        now = {worker.id: worker.deaths for worker in status.workers}
        deaths = sum(count - self._deaths.get(worker, 0) for worker, count in now.items())
        self._deaths, self.workers = now, len(now)
        return deaths


def memory_of(status: ModelStatus) -> float:
    """Return how many bytes a ready worker has on average, 0 if that is not known."""
    sizes = [worker.memory for worker in status.workers if worker.ready and worker.memory]
    return sum(sizes) / len(sizes) if sizes else 0.0
