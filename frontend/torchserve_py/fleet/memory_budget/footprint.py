"""What the workers of a model version took, and so what the next one will take.

Sizes are in bytes, by resource: `HOST`, and each GPU by its name.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

HOST: Final = "host"

#: Bytes of memory by resource.
Sizes = Mapping[str, int]

#: Of how many of the latest workers the peaks are remembered.
_REMEMBERED: Final = 5
#: What a worker takes of the machine besides its model: an interpreter and the modules of the server.
WORKER_ITSELF: Final = 60_000_000


def gpu(index: int) -> str:
    """Return the name of a GPU as a resource."""
    return f"gpu {index}"


class Footprint:
    """The memory of one model version's workers.

    ``declared`` is what its configuration says; ``files`` the size of its files, which counts where nothing was
    measured or declared.
    """

    def __init__(self, declared: int | None) -> None:
        self.declared = declared
        self.files: int | None = None
        self._peaks: deque[dict[str, int]] = deque(maxlen=_REMEMBERED)
        #: What the latest worker took while it loaded.
        self.loading: Sizes = {}

    @property
    def peaks(self) -> Sizes:
        """The greatest peaks of the remembered workers."""
        resources = {resource for each in self._peaks for resource in each}
        return {each: self.forecast(each, decides=False) for each in sorted(resources)}

    def recall(self, peaks: Sizes) -> None:
        """Remember a worker of an earlier server."""
        self._peaks.append(dict(peaks))

    def begin(self) -> None:
        """Remember a further worker."""
        self._peaks.append({})

    def note(self, sizes: Sizes, *, is_loading: bool = False) -> None:
        """Take what was measured of the latest worker; its peak counts.

        Of one that is loading only what is more than was expected counts: it will take more yet.
        """
        if not self._peaks:
            self.begin()
        latest = self._peaks[-1]
        for resource, size in sizes.items():
            if not is_loading or size > self.forecast(resource, decides=False):
                latest[resource] = max(size, latest.get(resource, 0))

    def least(self, resource: str, *, decides: bool) -> int:
        """Return what a worker takes at least, as far as that was measured or declared."""
        if resource in self.loading:
            return self.loading[resource]
        return self.declared or 0 if decides and not self.loading else 0

    def forecast(self, resource: str, *, decides: bool) -> int:
        """Return what the next worker takes of a resource; it ``decides`` which one a declared size is of."""
        if measured := [each[resource] for each in self._peaks if resource in each]:
            return max(measured)
        if self.declared is not None and decides:
            return self.declared
        return (self.files or 0) + (WORKER_ITSELF if resource == HOST else 0)
