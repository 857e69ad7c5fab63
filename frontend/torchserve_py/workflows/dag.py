"""The graph of a workflow: which node's answer goes to which nodes."""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from torchserve_py.workflows.errors import InvalidDag


class Dag:
    """A directed graph with one start node and no cycles, made of the children of each node.

    Attributes:
        parents: The parents of each node, whose answers the node gets; parents come before their children.
        leaves: The nodes whose answers form the answer of the workflow.

    Raises InvalidDag: the edges are no such graph.
    """

    def __init__(self, edges: Mapping[str, Sequence[str]]) -> None:
        self.edges = edges
        parents: dict[str, list[str]] = {node: [] for node in edges}
        for node, children in edges.items():
            for child in children:
                _check_edge(edges, node, child)
                parents.setdefault(child, []).append(node)
        starts = [node for node, above in parents.items() if not above]
        if len(starts) != 1:
            found = ", ".join(starts) or ("every node is a child of another" if parents else "there is no node")
            raise InvalidDag("DAG should have only one start node", found)
        self.parents: Mapping[str, tuple[str, ...]] = {node: tuple(parents[node]) for node in _in_order(parents)}
        self.leaves = tuple(node for node in self.parents if not edges.get(node))


def _check_edge(edges: Mapping[str, Sequence[str]], node: str, child: str) -> None:
    if child == node:
        raise InvalidDag("Self loop exception", f"{node} is a child of itself")
    if node in edges.get(child, ()):
        raise InvalidDag("loop exception", f"{node} and {child} are children of each other")
    if edges[node].count(child) > 1:
        raise InvalidDag("Not a valid DAG", f"{node} has the child {child} more than once")


def _in_order(parents: Mapping[str, Sequence[str]]) -> list[str]:
    try:
        return list(TopologicalSorter(parents).static_order())
    except CycleError as error:
        raise InvalidDag("Not a valid DAG", f"it has the cycle {' → '.join(error.args[1])}") from error
