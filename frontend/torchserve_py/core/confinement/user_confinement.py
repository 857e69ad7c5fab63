"""Workers that run as another user and with a limit on memory, where the system allows it."""

import os
import pwd
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import ts
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.confinement.confinement_settings import ConfinementSettings
from torchserve_py.core.workers.confinement import Confinement, ConfinementError

_NO = "-"
_MEGABYTE = 1 << 20


@dataclass(frozen=True)
class UserConfinement(Confinement):
    """How workers are confined; None = not in this way. ``group`` is the user's, ``memory`` is in bytes."""

    user: str | None = None
    group: int | None = None
    memory: int | None = None

    def wrap(self, command: list[str]) -> list[str]:
        """Return the command line that runs ``command`` so."""
        if self.user is None and self.memory is None:
            return command
        script = str(Path(ts.__file__).with_name("core") / "confinement" / "confine.py")
        memory = _NO if self.memory is None else str(self.memory)
        # -I: the model's folder is on PYTHONPATH, and nothing of it may run before the user has changed.
        return [sys.executable, "-I", script, self.user or _NO, memory, *command]

    def give(self, folder: Path) -> None:
        """Make the workers' user the owner of a folder that they write to."""
        if self.user is not None:
            os.chown(folder, pwd.getpwnam(self.user).pw_uid, -1)

    def share(self, *folders: Path | None) -> None:
        """Let the workers' user read what was unpacked or installed for a model, but not change it."""
        if self.group is None:
            return
        for folder in folders:
            for path in [folder, *folder.rglob("*")] if folder is not None else ():
                if path.is_symlink():
                    continue
                mode = stat.S_IMODE(path.stat().st_mode)
                os.chown(path, -1, self.group)
                readable = stat.S_IRGRP | (stat.S_IXGRP if mode & stat.S_IXUSR else 0)
                path.chmod((mode | readable) & ~stat.S_IWGRP)


def confinement(settings: Settings, needed: tuple[Path, ...]) -> Confinement:
    """Return how the settings confine workers; see `confinement_of`."""
    own = settings.of(ConfinementSettings)
    return confinement_of(own.worker_user, own.worker_memory_limit, needed)


def confinement_of(user: str | None, megabytes: int | None, needed: tuple[Path, ...]) -> UserConfinement:
    """Settle how workers are confined: their user and memory, None for the server's own and for no limit.

    Raises ConfinementError: the system, or the rights of the server, do not allow it; or the user may not enter one of
    the folders that workers need.
    """
    if megabytes is not None and sys.platform != "linux":
        raise ConfinementError(f"worker_memory_limit = {megabytes}: only Linux limits the memory of a process so")
    memory = None if megabytes is None else megabytes * _MEGABYTE
    if user is None:
        return UserConfinement(memory=memory)
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise ConfinementError(f"worker_user = {user}: there is no such user on this machine") from None
    if account.pw_uid == os.geteuid():
        return UserConfinement(memory=memory)
    if os.geteuid() != 0:
        raise ConfinementError(
            f"worker_user = {user}: only a server that root has started can start workers as another user; start it as"
            f" root, or start the server itself as {user} and leave worker_user away"
        )
    groups = set(os.getgrouplist(user, account.pw_gid))
    for folder in (*needed, Path(sys.executable).resolve().parent):
        closed = _closed(folder, account.pw_uid, groups)
        if closed is not None:
            raise ConfinementError(
                f"worker_user = {user}: that user may not enter {closed}, and workers need {folder}; allow it (chmod"
                " o+x), or have it elsewhere"
            )
    return UserConfinement(user, account.pw_gid, memory)


def _closed(folder: Path, uid: int, groups: set[int]) -> Path | None:
    """The first folder on the way to one that a user may not enter."""
    for each in (*reversed(folder.absolute().parents), folder):
        found = each.stat()
        if found.st_uid == uid:
            allowed = found.st_mode & stat.S_IXUSR
        elif found.st_gid in groups:
            allowed = found.st_mode & stat.S_IXGRP
        else:
            allowed = found.st_mode & stat.S_IXOTH
        if not allowed:
            return each
    return None
