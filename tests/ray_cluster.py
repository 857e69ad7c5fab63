"""A Ray cluster for tests: several nodes on this machine, which come and go."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class RayNodes:
    """A head without room for workers, and nodes that tests add and remove.

    Raises AssertionError: Ray does not start.
    """

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 << 20}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: list[Any] = []

    @property
    def address(self) -> str:
        """What ``ray_address`` is set to."""
        return str(self._cluster.address)

    @property
    def present(self) -> list[Any]:
        """The nodes but the head."""
        return list(self._nodes)

    def __enter__(self) -> RayNodes:
        return self

    def __exit__(self, *exc: object) -> None:
        self._cluster.shutdown()

    def add(self, **resources: Any) -> Any:
        """Start a node; return it."""
        node = self._cluster.add_node(object_store_memory=100 << 20, **resources)
        self._nodes.append(node)
        return node

    def remove(self, node: Any) -> None:
        """Kill a node and all that runs there."""
        self._nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def remove_all(self) -> None:
        """Kill all nodes but the head."""
        for node in self.present:
            self.remove(node)

    @contextlib.contextmanager
    def frozen_head(self) -> Iterator[None]:
        """Let the head of the cluster not answer."""
        (head,) = self._cluster.head_node.all_processes["gcs_server"]
        head.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            head.process.send_signal(signal.SIGCONT)
