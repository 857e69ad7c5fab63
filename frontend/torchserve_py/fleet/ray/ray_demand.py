"""What a worker needs of its node of a Ray cluster, and whether any node is large enough."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torchserve_py.core.workers.launch_command import Launch
from torchserve_py.fleet.ray.ray_keys import RayKeys

#: The label with the id of a node.
_NODE: Final = "ray.io/node-id"


@dataclass(frozen=True)
class NodeDemand:
    """What a worker needs of its node: the options of Ray's actors with the same names."""

    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        labels = [f"label {name}={value}" for name, value in self.label_selector.items()]
        return ", ".join([*_texts(self._amounts), *labels]) or "nothing in particular"

    @property
    def _amounts(self) -> dict[str, float]:
        amounts = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in amounts.items() if amount}

    def options(self, avoid: Sequence[str] = ()) -> dict[str, Any]:
        """Return the options of an actor that is on none of the nodes with the ids in ``avoid``."""
        options: dict[str, Any] = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        if self.resources:
            options["resources"] = dict(self.resources)
        selector: dict[str, str] = {_NODE: f"!in({','.join(avoid)})"} if avoid else {}
        if selector or self.label_selector:
            options["label_selector"] = {**selector, **self.label_selector}
        return options

    def why_unplaced(self, nodes: Iterable[Mapping[str, Any]]) -> str:
        """Say why the worker has no node among those of the cluster, as `ray.nodes` describes them."""
        totals = [node["Resources"] for node in nodes if node["Alive"]]
        wanted = self._amounts
        if any(all(total.get(name, 0) >= amount for name, amount in wanted.items()) for total in totals):
            return f"no node of the Ray cluster has room for it yet; it needs {self}"
        most = {name: max((total.get(name, 0) for total in totals), default=0) for name in wanted}
        return (
            f"no node of the Ray cluster is large enough for it; it needs {self},"
            f" and the most that a node has is {', '.join(_texts(most))}"
        )


def demand_of(launch: Launch) -> NodeDemand:
    """Return what a worker needs. A parallel one is on one node, with what each of its processes needs."""
    asked, processes = launch.plugin_keys.of(RayKeys).ray, launch.ranks.processes if launch.ranks else 1
    return NodeDemand(
        asked.num_cpus * processes,
        asked.num_gpus * processes,
        {name: amount * processes for name, amount in (asked.resources or {}).items()},
        asked.label_selector or {},
    )


def _texts(amounts: Mapping[str, float]) -> list[str]:
    return [f"{amount:g} {name}" for name, amount in amounts.items()]
