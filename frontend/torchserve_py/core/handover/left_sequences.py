"""Sequences in memory that a server leaves to the next one when it stops: each is written, and taken by one server.

The next one is a server that starts later, and finds them when it does, or, where servers share the storage, any other
one: that looks for a sequence when it opens, and asks the server that has it (`whereabouts`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeAlias

from torchserve_py.base.background_tasks import in_background
from torchserve_py.core.handover.disk import Disk, NoAnswer
from torchserve_py.core.handover.left_format import Left, unpacked
from torchserve_py.core.handover.storage import Found, Known, LeftStates, Place, Storage, Wanted, name_of
from torchserve_py.core.handover.whereabouts import Whereabouts
from torchserve_py.core.scheduling.sequence_source import LeftSequence

logger = logging.getLogger(__name__)

#: For how long a sequence is kept that is never idle for too long (seconds).
_LONGEST: Final = 30 * 86_400.0
#: How long looking at the storage, and reading, writing or removing sequences, may take (seconds).
_LIMIT: Final = 10.0

#: Begins to leave some of these, as far as they are open and rest.
Leave: TypeAlias = Callable[[Iterable[tuple[str, str]]], None]


#: Whether a sequence is one of some, by the name of its model, and its id.
IsNamed: TypeAlias = Callable[[str, str], bool]


class ServerHandover:
    """The sequences of all models that servers leave each other.

    Args:
        storage: Where they are left.
    """

    def __init__(self, storage: Storage) -> None:
        self._states, self._disk = storage.states, Disk()
        self._whereabouts = None if storage.lists is None else Whereabouts(storage.lists)
        #: What earlier servers have left, by its keys, by the name of the model in them.
        self._found: dict[str, dict[str, Found]] = {}
        self._left: dict[str, LeftSequences] = {}
        #: The names of models, by those in keys.
        self._models: dict[str, str] = {}

    @property
    def is_shared(self) -> bool:
        """Whether other servers may have the sequences, and are to be told which this one has."""
        return self._whereabouts is not None

    async def look(self) -> None:
        """Note which sequences there are; remove those that are over."""
        try:
            all_found = await self._disk.run(self._states.all, _LIMIT)
        except OSError as error:
            logger.warning("What an earlier server has left of sequences in memory is lost: %s", error)
            return
        if not self.is_shared:  # else others may take them
            for key, found in all_found.items():
                self._found.setdefault(key.partition("/")[0], {})[key] = found

    def of(self, model: str) -> LeftSequences:
        """Return those of a model."""
        if (left := self._left.get(model)) is None:
            name = name_of(model)
            found = self._found.pop(name, {})
            left = self._left[model] = LeftSequences(name, self._states, self._disk, found, self._whereabouts)
            self._models[name] = model
        return left

    async def settle(self) -> None:
        """Wait until no sequences change hands within this process."""
        for left in self._left.values():
            async with left.changing_hands:
                pass

    def share(self, is_open: Callable[[str, str], bool], leave: Leave, give_up: Callable[[IsNamed], None]) -> None:
        """Tell servers with this storage which sequences this one has, from now on until `has_left`.

        ``is_open`` tells whether a sequence of a model is open here. Those that others ask for are left to them, and
        those that they have, too, are given up.
        """
        if self._whereabouts is not None:
            self._whereabouts.start(
                partial(self._has, is_open),
                partial(self._leave, leave),
                lambda names: give_up(lambda model, sequence_id: f"{name_of(model)}/{name_of(sequence_id)}" in names),
            )

    def _has(self, is_open: Callable[[str, str], bool], wanted: Wanted) -> bool | None:
        model = self._models[wanted.model]
        is_fetched = wanted.sequence_id in self._left[model].fetching
        return None if is_fetched else is_open(model, wanted.sequence_id)

    def _leave(self, leave: Leave, wanted: Iterable[Wanted]) -> None:
        known = [each for each in wanted if each.model in self._models]
        for each in known:  # perhaps it is not open, although the list says so
            self._left[self._models[each.model]].changed(each.sequence_id)
        leave([(self._models[each.model], each.sequence_id) for each in known])

    async def has_left(self, open_sequences: Iterable[tuple[str, str]]) -> None:
        """Tell that no more will come; what is still open is lost. Wait until files are gone that are to go."""
        if self._whereabouts is not None:
            lost = [f"{name_of(model)}/{name_of(sequence_id)}" for model, sequence_id in open_sequences]
            with contextlib.suppress(OSError):  # they take this one for dead
                await self._whereabouts.end(lost)
        await asyncio.gather(*(left.removed() for left in self._left.values()))


class LeftSequences:
    """Those of one model, by their ids.

    Args:
        model: The name of the model in keys.
        states: Where they are left.
        disk: What this runs on that blocks.
        found: Those that earlier servers have left, by their keys.
        whereabouts: What other servers have; None if there are none.
    """

    def __init__(
        self,
        model: str,
        states: LeftStates,
        disk: Disk,
        found: dict[str, Found],
        whereabouts: Whereabouts | None = None,
    ) -> None:
        self._model, self._states, self._disk = model, states, disk
        self._found, self._whereabouts = found, whereabouts
        #: Whether other servers may have sequences, which this does not know of.
        self.is_shared = whereabouts is not None
        #: Held while they change hands within this process, as they do when a version is loaded again.
        self.changing_hands = asyncio.Lock()
        #: By sequence, the latest attempt to give it to a worker.
        self.fetching: dict[str, asyncio.Task[None]] = {}
        #: The version of each that is about to be left, by its key, and whether it is lost after all.
        self._coming: dict[str, tuple[str, asyncio.Future[bool]]] = {}
        #: What is being removed.
        self._removing = set[asyncio.Task[None]]()

    async def find(self, sequence_id: str, limit: float, *, may_begin: bool = True) -> bool:
        """Look for a sequence that another server may have left, or has, and is asked for then.

        Return whether the sequence is lost. A disk that gives no answer has nothing if the sequence ``may_begin`` here.
        Raises TimeoutError: another server has it, and has not left it within ``limit`` seconds, or the disk has given
        no answer.
        """
        key = self._key(sequence_id)
        if self._whereabouts is None or key in self._coming or self.has_taken(sequence_id):
            return False  # no other server has it
        place, found = await self._whereabouts.seek(key, self._wanted(sequence_id), limit, may_begin=may_begin)
        self._found.pop(key, None)
        if found is not None:
            self._found[key] = found
        return place is Place.lost

    def has_taken(self, sequence_id: str) -> bool:
        """Whether this server has taken a sequence that was left, which no worker has yet."""
        key = self._key(sequence_id)
        found = self._found.get(key)
        return found is not None and found.key != key

    def changed(self, sequence_id: str) -> None:
        """Note that a sequence may have been opened or closed here."""
        if self._whereabouts is not None:
            self._whereabouts.changed(self._key(sequence_id), self._wanted(sequence_id))

    def keeps(self, sequence_id: str) -> None:
        """Note that a sequence which is open here cannot be left to others, for which it is lost."""
        if self._whereabouts is not None:
            self._whereabouts.keeps(self._key(sequence_id), self._wanted(sequence_id))

    def _key(self, sequence_id: str) -> str:
        return f"{self._model}/{name_of(sequence_id)}"

    def _wanted(self, sequence_id: str) -> Wanted:
        """Return how other servers are asked for a sequence."""
        return Wanted(self._model, sequence_id)

    def version_of(self, sequence_id: str) -> str | None:
        """Return the version of a sequence that is there, or is to come; None if there is none."""
        if not (self._found or self._coming):
            return None
        key = self._key(sequence_id)
        found = self._found.get(key) or self._coming.get(key)
        return None if found is None else found[0]

    def expect(self, version: str, sequence_ids: Iterable[str]) -> None:
        """Let these sequences count from now on, before they come: each will be written or `absent`."""
        loop = asyncio.get_running_loop()
        self._coming.update({self._key(each): (version, loop.create_future()) for each in sequence_ids})

    async def wait_for(self, sequence_id: str) -> bool:
        """Wait until a sequence that is expected has come, or is not to come; return whether it is lost then."""
        coming = self._coming.get(self._key(sequence_id))
        return coming is not None and await asyncio.shield(coming[1])

    def has_come(self, version: str, sequence_id: str) -> None:
        """Let others of this process have a sequence that was written, and given up."""
        key = self._key(sequence_id)
        self._found[key] = Found(version, key)
        self._came(key, is_lost=False)

    def absent(self, sequence_id: str, *, is_lost: bool) -> None:
        """Note that a sequence is over, or has nothing to be left."""
        if self._whereabouts is not None:
            note = self._whereabouts.lost if is_lost else self._whereabouts.changed
            note(self._key(sequence_id), self._wanted(sequence_id))
        if self._coming:
            self._came(self._key(sequence_id), is_lost=is_lost)

    def lose_expected(self) -> None:
        """Note that all that is still expected is lost."""
        for key in list(self._coming):
            self._came(key, is_lost=True)

    def _came(self, key: str, *, is_lost: bool) -> None:
        if (coming := self._coming.pop(key, None)) is not None:
            coming[1].set_result(is_lost)

    async def look_first(self) -> None:
        """Wait until it is known what others have begun anew, if this server was frozen."""
        if self._whereabouts is not None:
            await self._whereabouts.look_first()

    async def write(
        self, version: str, sequence_id: str, left: LeftSequence, rest: float, given: Iterable[bytes], limit: float
    ) -> None:
        """Write a sequence that may be idle for ``rest`` seconds more; the next server may have it from now on.

        Raises OSError: it was not written, and will not be, perhaps because this server was frozen at that moment.
        """
        time_left = None if math.isinf(left.time_left) else left.time_left
        known = Known(version, time.time() + min(rest, _LONGEST), left.tokens, time_left)
        decided = threading.Lock()  # held by who has decided whether it is to count: the thread that writes, or this
        is_dropped = False

        def counts() -> bool:
            if self._whereabouts is not None and self._whereabouts.was_silent:
                raise OSError("other servers take this one for dead")
            return decided.acquire(blocking=False)

        def more() -> float:
            nonlocal is_dropped
            is_dropped = decided.acquire(blocking=False)
            return 0.0 if is_dropped else _LIMIT

        write = partial(self._states.write, self._key(sequence_id), known, given, counts)
        try:
            await self._disk.run(write, min(limit, _LIMIT), more)
        except NoAnswer:
            if is_dropped or decided.acquire(blocking=False):
                raise
            # It is being given its key, and nothing can hold that up any more: so it counts.

    def withdraw(self, sequence_id: str) -> None:
        """Remove a sequence that was written, and is over."""
        self._in_background(partial(self._states.remove, [self._key(sequence_id)]))

    async def read(self, sequence_id: str) -> Left | None:
        """Take a sequence, which no other server gets from now on; None if another one has it, or it has not come.

        It can be read again until this one has called `forget`. Raises OSError: it may have been taken; Damaged.
        """
        key = self._key(sequence_id)
        if (found := self._found.get(key)) is None:
            return None
        taken = found.key
        if taken == key:
            taken = f"{self._model}/.taken-{name_of(sequence_id)}-{secrets.token_hex(8)}"
            self._found[key] = Found(found.version, taken)
        return await self._disk.run(partial(_take, self._states, key, taken), _LIMIT)

    async def put_back(self, sequence_id: str) -> None:
        """Let other servers have a sequence again that this one has read, and does not begin."""
        key = self._key(sequence_id)
        if self.is_shared and self.has_taken(sequence_id):
            found = self._found[key]
            with contextlib.suppress(OSError):  # then this one may read it again
                await self._disk.run(partial(self._states.rename, found.key, key), _LIMIT)
                self._found[key] = Found(found.version, key)

    def forget(self, sequence_id: str) -> None:
        """Remove a sequence, which has a worker now, or is of no use."""
        if (found := self._found.pop(self._key(sequence_id), None)) is not None:
            self._in_background(partial(self._states.remove, [found.key]))

    def drop(self) -> None:
        """Remove all: no version of the model is served any more."""
        self._found.clear()
        self._in_background(partial(self._states.drop, self._model))

    def _in_background(self, remove: Callable[[], None]) -> None:
        task = in_background(self._remove(remove), "removing left sequences")
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def _remove(self, remove: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):  # it is over one day, or whoever reads it finds that
            await self._disk.run(remove, _LIMIT)

    async def removed(self) -> None:
        """Wait until what was to be removed is gone."""
        if self._removing:
            await asyncio.wait(self._removing)


def _take(states: LeftStates, key: str, taken: str) -> Left | None:
    """Take a sequence, and read it. Blocks."""
    content = states.take(key, taken)
    return None if content is None else unpacked(content)
