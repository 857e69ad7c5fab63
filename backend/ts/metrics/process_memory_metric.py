"""Measures the memory of processes, for scripts that `system_metrics_cmd` names; the server itself does not use it."""

import logging
from typing import TextIO

import psutil


def get_cpu_usage(pid: str) -> int:
    """Return the resident memory of a process in bytes, 0 if it is gone."""
    try:
        return int(psutil.Process(int(pid)).memory_info().rss)
    except psutil.Error:
        logging.getLogger().error("Failed get process for pid: %s", pid, exc_info=True)
        return 0


def check_process_mem_usage(stdin: TextIO) -> None:
    """Log ``pid:bytes`` for each of the process ids, separated by commas, in the first line of ``stdin``."""
    for pid in stdin.readline().strip().split(","):
        if pid:
            logging.getLogger().info("%s:%d", pid, get_cpu_usage(pid))
