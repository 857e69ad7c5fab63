"""Opens a store in a file, for workers and for operators."""

from ts.protocol.messages import Cache
from ts.sequences.sqlite.file_maintenance import FileMaintenance
from ts.sequences.sqlite.file_store import FileStore
from ts.sequences.steps.stores.maintenance import Maintenance
from ts.sequences.steps.stores.store import Store, StoreSettings


def open_store(settings: StoreSettings, cache: Cache) -> Store:
    """Return the store that a model's configuration names. Raises StoreError: it cannot be opened."""
    return FileStore(settings, cache["path"], fsync=cache["fsync"])


def keeps(place: str) -> bool:
    """Return whether a store at this place is a file."""
    return "://" not in place


def open_maintenance(place: str, *, create: bool) -> Maintenance:
    """Return the store at a path; ``create`` makes one where there is none. Raises StoreError: it cannot be used."""
    return FileMaintenance(place, create=create)
