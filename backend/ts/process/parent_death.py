"""Ends this process when the one that started it dies, however it dies.

    python -P -m ts.process.parent_death MODULE ARGUMENTS…

runs a module as ``python -m MODULE ARGUMENTS…`` does, in such a process: for launchers that start workers and know
nothing of their parent themselves.
"""

import signal
import sys

#: ``PR_SET_PDEATHSIG`` of <linux/prctl.h>.
_SET_PARENT_DEATH_SIGNAL = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; on systems other than Linux do nothing.

    There the process ends when it notices the end of its connection, which may be after the current inference.
    """
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def main(arguments: list[str]) -> None:
    """Run the module that the first argument names. Raises SystemExit: its package does not exist, or it exits."""
    import importlib.util
    import runpy

    if not arguments:
        sys.exit("usage: python -P -m ts.process.parent_death MODULE ARGUMENTS…")
    die_with_parent()
    module, *_ = sys.argv = arguments
    package, _, _ = module.partition(".")
    if importlib.util.find_spec(package) is None:
        sys.exit(f"the worker cannot be started by {module}: there is no package {package} for {sys.executable}")
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
