"""States of the models: the version that they are of, then the tokens of the steps. One in ten cannot be migrated."""

from zlib import crc32

from hazards import note

#: One of so many sequences stays with the version that began it.
STAYS = 10


def tokens_of(state: list[str], version: str) -> list[str]:
    """Return the tokens in a state that a version gets; what no client expects if it is another version's state."""
    return state[1:] if state[0] == version else [f"version {version} has a state of version {state[0]}"]


def migrated(state: list[str], from_version: str, version: str) -> list[str]:
    """Return another version's state as one of this version. Raises ValueError for one sequence in ten."""
    if crc32(state[1].encode()) % STAYS == 0:
        note("migration failed")
        raise ValueError(f"{state[1]} stays")
    note("sequence migrated")
    return [version, *tokens_of(state, from_version)]
