"""Shared memory that clients have registered, for tensors that are not sent (Triton's system shared memory extension).

A client creates a POSIX shared memory object and registers a part of it, a *region*, under a name. The operator says
with ``shared_memory_keys`` which objects can be registered; without that setting there are none. Regions are read and
written by system calls and never mapped: if its owner truncates an object, the server gets an error and no SIGBUS.
"""

import errno
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from torchserve_py.apis.open_inference.open_inference_settings import OpenInferenceSettings
from torchserve_py.endpoints.failures import EndpointError, Failure, bad_request, unsupported
from torchserve_py.endpoints.routing import EndpointContext

#: Where Linux has POSIX shared memory objects.
FOLDER: Final = Path("/dev/shm")  # noqa: S108 - the objects are clients', and which are used is checked
#: The regions that may be registered at once: each has an open file.
MAX_REGIONS: Final = 256
_MAX_NAME: Final = 255
_KEY: Final = re.compile(r"/?([A-Za-z0-9_][A-Za-z0-9_.-]{0,254})")
_MAX_NUMBER: Final = 2**63 - 1


class RegionSlice(NamedTuple):
    """A part of a region, which holds an input or an output."""

    region: str
    offset: int
    size: int


@dataclass
class _Region:
    name: str
    key: str
    offset: int
    size: int
    file: int


class SharedMemory:
    """The regions of a server; ``keys`` are shell patterns of those that clients may register.

    The inputs of one request have up to ``most`` bytes. Methods raise EndpointError for what a client asks for and
    cannot have: shared memory is off, a value is invalid, or a region or its object is not as it was, or does not
    exist.
    """

    @classmethod
    def of(cls, context: EndpointContext) -> Self:
        """Return that of a server."""
        return cls(context.settings.of(OpenInferenceSettings).shared_memory_keys, context.settings.max_request_size)

    def __init__(self, keys: Sequence[str], most: int, folder: Path = FOLDER) -> None:
        self._keys = keys
        self._most = most
        self._folder = folder
        self._regions: dict[str, _Region] = {}

    @property
    def is_enabled(self) -> bool:
        """Whether any region can be registered."""
        return bool(self._keys)

    def check_enabled(self) -> None:
        """Check that regions can be registered."""
        if not self._keys:
            message = "Shared memory is off: the setting shared_memory_keys names no keys. Send tensors in the message."
            raise unsupported(message)

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Describe one region, or with an empty name all."""
        self.check_enabled()
        found = [self._region(name)] if name else self._regions.values()
        return [{"name": each.name, "key": each.key, "offset": each.offset, "byte_size": each.size} for each in found]

    def register(self, name: Any, key: Any, offset: Any, size: Any) -> None:
        """Register a region, under a name that is not in use."""
        self.check_enabled()
        if type(name) is not str or not 0 < len(name) <= _MAX_NAME:
            raise bad_request(f"The name of a region must be a text of 1 to {_MAX_NAME} characters.")
        found = _KEY.fullmatch(key) if type(key) is str else None
        if found is None:
            raise bad_request(
                f"The key of region {name!r} must be the name of a POSIX shared memory object: letters, digits, '_',"
                " '-' and '.', with at most one '/' in front of them."
            )
        bare = found[1]
        if not any(fnmatchcase(bare, pattern.removeprefix("/")) for pattern in self._keys):
            message = f"The key {key!r} of region {name!r} is not allowed by the setting shared_memory_keys."
            raise EndpointError(Failure(403, "ForbiddenException", message))
        _check_number(f"The offset of region {name!r}", offset, 0)
        _check_number(f"The byte_size of region {name!r}", size, 1)
        if name in self._regions:
            message = f"The region {name!r} is registered already; unregister it."
            raise EndpointError(Failure(409, "ConflictStatusException", message))
        if len(self._regions) >= MAX_REGIONS:
            raise bad_request(f"There are {MAX_REGIONS} regions, which is the most; unregister some.")
        self._regions[name] = _Region(name, key, offset, size, self._open(name, bare, offset + size))

    def _open(self, name: str, key: str, end: int) -> int:
        what = f"The shared memory object {key!r} of region {name!r}"
        try:
            file = os.open(self._folder / key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise bad_request(f"{what} cannot be opened: {error.strerror}.") from error
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise bad_request(f"{what} is no shared memory object.")
            if found.st_size < end:
                raise bad_request(f"{what} has {found.st_size} bytes; the region would end at byte {end}.")
        except BaseException:
            os.close(file)
            raise
        return file

    def unregister(self, name: str = "") -> None:
        """Forget one region, if there is one of that name; with an empty name all."""
        self.check_enabled()
        for each in [name] if name else list(self._regions):
            region = self._regions.pop(each, None)
            if region is not None:
                os.close(region.file)

    def place(self, what: str, region: Any, offset: Any, size: Any) -> RegionSlice:
        """Return the place that the parameters of an input or output name; ``what`` names the tensor."""
        self.check_enabled()
        found = self._region(region)
        offset = 0 if offset is None else offset
        _check_number(f"The shared_memory_offset of {what}", offset, 0)
        _check_number(f"The shared_memory_byte_size of {what}", size, 0)
        if offset + size > found.size:
            raise bad_request(
                f"{what} has {size} bytes from byte {offset} of region {found.name!r}, which has {found.size} bytes."
            )
        return RegionSlice(found.name, offset, size)

    def check_total(self, places: Sequence[RegionSlice]) -> int:
        """Return how many bytes the inputs of one request have."""
        total = sum(place.size for place in places)
        if total > self._most:
            raise bad_request(f"The inputs in shared memory have {total} bytes; max_request_size is {self._most}.")
        return total

    def read(self, place: RegionSlice) -> bytes:
        """Return the bytes at a place."""
        region = self._region_of(place)
        data = os.pread(region.file, place.size, region.offset + place.offset)
        if len(data) < place.size:
            raise _shrunk(region)
        return data

    def write(self, place: RegionSlice, data: memoryview) -> None:
        """Write an output to its place."""
        region = self._region_of(place)
        if len(data) > place.size:
            raise bad_request(f"An output has {len(data)} bytes; its place in region {region.name!r} has {place.size}.")
        try:
            file = os.open(f"/proc/self/fd/{region.file}", os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise bad_request(f"The region {region.name!r} cannot be written: {error.strerror}.") from error
        try:
            at = region.offset + place.offset
            if os.fstat(file).st_size < at + len(data):
                raise _shrunk(region)
            while data:
                count = os.pwrite(file, data, at)
                at, data = at + count, data[count:]
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "")
            raise bad_request(f"The region {region.name!r} cannot be written: {error.strerror} ({name}).") from error
        finally:
            os.close(file)

    def _region_of(self, place: RegionSlice) -> _Region:
        region = self._region(place.region)
        if place.offset + place.size > region.size:
            raise bad_request(
                f"The region {region.name!r} has {region.size} bytes and has been registered again since."
            )
        return region

    def _region(self, name: Any) -> _Region:
        region = self._regions.get(name) if type(name) is str else None
        if region is None:
            raise bad_request(f"There is no shared memory region {str(name)[:_MAX_NAME]!r}; register it.")
        return region


def _check_number(what: str, value: Any, least: int) -> None:
    if type(value) is not int or not least <= value <= _MAX_NUMBER:
        raise bad_request(f"{what} must be an integer of at least {least}, it is {str(value)[:50]!r}.")


def _shrunk(region: _Region) -> EndpointError:
    return bad_request(f"The shared memory object {region.key!r} of region {region.name!r} has become shorter.")
