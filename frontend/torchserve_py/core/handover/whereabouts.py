"""Which of the servers with one storage has which sequence in memory: this one tells, looks for, and is asked.

One task does all of it, several times a second: `Lists` are what it reads and writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Final, NamedTuple

from torchserve_py.base.background_tasks import in_background
from torchserve_py.core.handover.disk import Disk
from torchserve_py.core.handover.storage import DEAD, HAS, LACKS, LOST, Found, Lists, Place, Seen, Wanted
from ts.protocol.boot_clock import boot_time

logger = logging.getLogger(__name__)

#: How often it is looked what other servers want, and for what is to come, or told what they wait for (seconds).
_WANTED_INTERVAL: Final = 0.1
_SEEK_INTERVAL: Final = 0.02
#: How long a look may take (seconds).
_LIMIT: Final = 2.0
#: How many changes are told in one turn of the event loop.
_MOST_CHANGED: Final = 5_000
#: Of how many sequences others are told that they are lost; the oldest are forgotten.
_MOST_LOST: Final = 10_000

#: Whether this server has a sequence of a model open; None while it gets that from a file, after which it is `changed`.
IsOpen = Callable[[Wanted], bool | None]


class _Sought(NamedTuple):
    """A sequence that is looked for.

    Attributes:
        may_begin: Whether it may begin here if nobody can tell whether another server has it.
    """

    wanted: Wanted
    may_begin: bool
    found: asyncio.Future[tuple[Place, Found | None]]


class Whereabouts:
    """Tells and learns where sequences are.

    Args:
        lists: Those of the servers.
    """

    def __init__(self, lists: Lists) -> None:
        self._lists = lists
        #: Its own, since these looks wait for no state that is read or written.
        self._disk = Disk()
        self._sought: dict[str, _Sought] = {}
        #: Those that another server had at the last look which did not fail.
        self._elsewhere = set[str]()
        #: Those of which the list is to say what is so now, and those that the latest look may let it name.
        self._changed: dict[str, Wanted] = {}
        self._told: Collection[str] = ()
        #: Those that were lost here, and those that are open and cannot be left to others.
        self._lost: dict[str, Wanted] = {}
        self._kept = set[str]()
        self._wake = asyncio.Event()
        #: What is to be given up, which also a look tells that is late.
        self._usurped = deque[str]()
        #: When the latest look began that is over, by `boot_time`, and what waits for the end of the next one.
        self._looked_at = boot_time()
        self._looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_blind = self._has_ended = self._is_awaited = False

    def start(
        self, is_open: IsOpen, leave: Callable[[Iterable[Wanted]], None], give_up: Callable[[Collection[str]], None]
    ) -> None:
        """Begin to tell other servers what is open here, and to leave what they ask for.

        What this server is to give up is given to ``give_up``: others have it, too. They have begun it anew while this
        one was frozen, and taken for dead, or both have begun it while the folder did not work.
        """
        if self._task is None:
            task = self._run(is_open, leave, give_up)
            self._task = in_background(task, "telling other servers which sequences this one has")

    async def end(self, still_open: Iterable[str]) -> None:
        """Tell the other servers that this one has ended, with the sequences that are still open. Raises OSError."""
        self._has_ended = True
        if self._task is not None:  # not cancelled: its thread would write on
            self._wake.set()
            await asyncio.wait([self._task])
        lost = [*self._lost, *still_open]
        await self._disk.run(lambda: self._lists.end(lost), _LIMIT)

    def changed(self, name: str, wanted: Wanted) -> None:
        """Note that a sequence may have been opened or closed."""
        self._changed[name] = wanted

    def lost(self, name: str, wanted: Wanted) -> None:
        """Note that a sequence was lost here."""
        self._lost[name] = wanted
        self.changed(name, wanted)
        if len(self._lost) > _MOST_LOST:
            oldest = next(iter(self._lost))
            self.changed(oldest, self._lost.pop(oldest))

    def keeps(self, name: str, wanted: Wanted) -> None:
        """Note that a sequence which is open cannot be left to others, for which it is lost."""
        self._kept.add(name)
        self.changed(name, wanted)

    @property
    def was_silent(self) -> bool:
        """Whether others take this server for dead, which was frozen, and does not know yet what they have begun."""
        return self._task is not None and not self._task.done() and boot_time() - self._looked_at > DEAD

    async def look_first(self) -> None:
        """Wait for a look if this server was frozen: others may have begun anew what it has."""
        while self.was_silent:
            self._looked.clear()
            self._wake.set()
            await self._looked.wait()

    async def seek(
        self, name: str, wanted: Wanted, limit: float, *, may_begin: bool = True
    ) -> tuple[Place, Found | None]:
        """Look for a sequence that is to open here; return its file, or that it is lost, or nowhere.

        One that another server has is asked for; raises TimeoutError: that has not left it within ``limit`` seconds, or
        it could not be seen where the sequence is, which ``may_begin`` here only if so.
        """
        if (sought := self._sought.get(name)) is None:
            sought = _Sought(wanted, may_begin, asyncio.get_running_loop().create_future())
            self._sought[name] = sought
            self._wake.set()
        try:
            async with asyncio.timeout(limit):
                return await asyncio.shield(sought.found)
        except TimeoutError:
            self._sought.pop(name, None)
            raise

    async def _run(
        self, is_open: IsOpen, leave: Callable[[Iterable[Wanted]], None], give_up: Callable[[Collection[str]], None]
    ) -> None:
        while not self._has_ended:
            await self._pause()
            began = boot_time()
            try:
                seen = await self._look(is_open)
                if self._usurped:
                    give_up({self._usurped.popleft() for _ in range(len(self._usurped))})
                self._is_awaited = bool(seen.wanted)
                if seen.wanted:
                    leave(seen.wanted)
            except Exception:  # a defect of the server: others would take it for dead
                logger.exception("Other servers could not be told of sequences in memory this time")
            self._looked_at = began
            self._looked.set()

    async def _pause(self) -> None:
        """Wait until it is time to look, or there is something to be looked for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SEEK_INTERVAL if self._sought or self._is_awaited else _WANTED_INTERVAL):
                await self._wake.wait()
        self._wake.clear()

    async def _look(self, is_open: IsOpen) -> Seen:
        changed = dict(islice(self._changed.items(), _MOST_CHANGED))
        for name in changed:
            del self._changed[name]
        begins = {name: each.may_begin for name, each in self._sought.items()}
        sought = {name: each.wanted for name, each in self._sought.items()}
        now = {name: is_open(each) for name, each in changed.items() if name not in sought}
        marks = {name: self._mark(name, has) for name, has in now.items() if has is not None}
        if not self._disk.hangs:
            self._told = {name for name, mark in marks.items() if mark != LACKS} | sought.keys()
        try:
            seen = await self._disk.run(lambda: self._look_at_lists(marks, sought), _LIMIT)
        except OSError as error:
            # Of what is over the list says nothing, unless it names that, or a look that hangs may still let it do so.
            self._changed |= {
                name: wanted
                for name, wanted in changed.items()
                if marks.get(name) != LACKS or name in self._told or self._lists.names(name)
            }
            places = {name: self._unseen(name, may_begin=may_begin) for name, may_begin in begins.items()}
            self._changed |= {name: sought[name] for name, place in places.items() if place is not Place.elsewhere}
            seen = Seen(places, {}, [], [], error)
        if seen.problem is not None and not self._is_blind:
            logger.warning("Other servers cannot be told of sequences in memory, or asked for them: %s", seen.problem)
        self._is_blind = seen.problem is not None
        self._elsewhere = {name for name, place in seen.places.items() if place is Place.elsewhere}
        for name, place in seen.places.items():
            if place is not Place.elsewhere and name in self._sought:
                self._sought.pop(name).found.set_result((place, seen.found.get(name)))
        return seen

    def _look_at_lists(self, marks: dict[str, str], sought: dict[str, Wanted]) -> Seen:
        """Look, and note what is to be given up. Blocks."""
        seen = self._lists.look(marks, sought)
        self._usurped.extend(seen.usurped)
        return seen

    def _unseen(self, name: str, *, may_begin: bool) -> Place:
        """Return where a sequence is taken to be that could not be looked for."""
        if name in self._elsewhere:  # it may be on its way here
            return Place.elsewhere
        place = self._lists.place(name)
        return Place.elsewhere if place is Place.nowhere and not may_begin else place

    def _mark(self, name: str, is_open: bool) -> str:
        if not is_open:
            self._kept.discard(name)
            return LOST if name in self._lost else LACKS
        self._lost.pop(name, None)
        return LOST if name in self._kept else HAS
