"""A Ray cluster for tests: several nodes on this machine, which come and go.

A process of their own starts and ends them, for Ray blocks meanwhile, and insists on handling signals.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, ClassVar, TypeVar

from ts.process.parent_death import die_with_parent

T = TypeVar("T")

_OBJECT_STORE = 100 << 20


class RayNodes:
    """A head without room for workers, and nodes that tests add and remove, each known by its number.

    Raises an error of Ray's: it does not start.
    """

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._process = ProcessPoolExecutor(1, spawn, initializer=die_with_parent)
        self._nodes: list[int] = []
        #: What ``ray_address`` is set to.
        self.address = self._call(_start_head)

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        return self._process.submit(function, *arguments).result()

    @property
    def present(self) -> list[int]:
        """The nodes but the head."""
        return list(self._nodes)

    def __enter__(self) -> RayNodes:
        return self

    def __exit__(self, *exc: object) -> None:
        self._call(_end)
        self._process.shutdown()

    def add(self, **resources: Any) -> int:
        """Start a node; return its number."""
        node = self._call(_add, resources)
        self._nodes.append(node)
        return node

    def remove(self, node: int) -> None:
        """Kill a node and all that runs there."""
        self._nodes.remove(node)
        self._call(_remove, node)

    def remove_all(self) -> None:
        """Kill all nodes but the head."""
        for node in self.present:
            self.remove(node)

    def processes(self) -> dict[int, list[str]]:
        """Return which processes of each node live."""
        return self._call(_processes)

    def kill_head(self) -> None:
        """Kill the head of the cluster."""
        self._call(_kill_head)

    def start_head(self) -> None:
        """Start a head at the address of the one that was killed. The nodes are those of the other: remove them."""
        assert self._call(_start_head, int(self.address.rpartition(":")[2])) == self.address

    @contextlib.contextmanager
    def frozen_head(self) -> Iterator[None]:
        """Let the head of the cluster not answer."""
        pid = self._call(_head_pid)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


# What runs in the process of the nodes.


class _Running:
    """The cluster, and its nodes but the head."""

    cluster: Any
    nodes: ClassVar[dict[int, Any]] = {}


def _start_head(port: int | None = None) -> str:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    if port is not None:
        head["gcs_server_port"] = port
    _Running.cluster = Cluster(initialize_head=True, head_node_args=head)
    return str(_Running.cluster.address)


def _end() -> None:
    for number in list(_Running.nodes):
        _remove(number)
    _kill_head()


def _add(resources: dict[str, Any]) -> int:
    node = _Running.cluster.add_node(object_store_memory=_OBJECT_STORE, **resources)
    number = max(_Running.nodes, default=0) + 1
    _Running.nodes[number] = node
    return number


def _remove(number: int) -> None:
    _Running.nodes.pop(number).kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


def _processes() -> dict[int, list[str]]:
    return {number: [kind for kind, _ in node.live_processes()] for number, node in _Running.nodes.items()}


def _kill_head() -> None:
    _Running.cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


def _head_pid() -> int:
    (head,) = _Running.cluster.head_node.all_processes["gcs_server"]
    return int(head.process.pid)
