"""Starts a worker that is not trusted: changes the user, limits the memory, and then becomes the worker's program.

    python -I …/ts/core/confinement/confine.py USER MEMORY COMMAND…

USER is a name or "-", MEMORY the bytes that the program may allocate or "-". It runs isolated from PYTHONPATH (the
model's folder is on that) and imports nothing but the standard library: until the user has changed, no code of the
model runs.
"""

import os
import pwd
import resource
import shutil
import sys

_NO = "-"


def main(arguments: list[str]) -> None:
    """Change the user, limit the memory and become the program. Raises SystemExit: one of these steps failed."""
    if len(arguments) < 3:
        sys.exit("usage: python -I confine.py USER|- BYTES|- COMMAND…")
    user, memory, *command = arguments
    # Look the program up now: the new user may have no access to the folders of Python itself.
    program = shutil.which(command[0])
    if program is None:
        sys.exit(f"the worker cannot be started: there is no program {command[0]}")
    try:
        if memory != _NO:
            # Not RLIMIT_AS: CUDA reserves addresses for far more memory than it ever uses.
            resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
        if user != _NO:
            become(user)
        os.execv(program, command)  # noqa: S606 - no shell is needed
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"the worker cannot be started as user {user} with {memory} bytes of memory: {error}")


def become(user: str) -> None:
    """Give up this process's user and groups for those of another, for good."""
    account = pwd.getpwnam(user)
    os.initgroups(account.pw_name, account.pw_gid)
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    os.environ.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name)
    os.umask(0o077)


if __name__ == "__main__":
    main(sys.argv[1:])
