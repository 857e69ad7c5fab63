"""Why a worker has no node of a Ray cluster: it waits for room, or no node is large enough."""

from typing import Any

import pytest

from torchserve_py.fleet.ray.ray_demand import NodeDemand


def node(*, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"memory": 1e9, **resources}}


@pytest.mark.parametrize(
    ("demand", "text"),
    [
        (NodeDemand(), "no node of the Ray cluster has room for it yet; it needs 1 CPU"),
        (
            NodeDemand(2, 0.5, {"a100": 1}, {"zone": "a"}),
            "no node of the Ray cluster has room for it yet; it needs 2 CPU, 0.5 GPU, 1 a100, label zone=a",
        ),
        (
            NodeDemand(4, 2),  # no single node has both
            "no node of the Ray cluster is large enough for it; it needs 4 CPU, 2 GPU,"
            " and the most that a node has is 4 CPU, 2 GPU",
        ),
        (
            NodeDemand(0, 0, {"gone": 1}),
            "no node of the Ray cluster is large enough for it; it needs 1 gone,"
            " and the most that a node has is 0 gone",
        ),
        (NodeDemand(0), "no node of the Ray cluster has room for it yet; it needs nothing in particular"),
    ],
)
def test_it_says_what_is_needed_and_what_there_is(demand: NodeDemand, text: str) -> None:
    nodes = [node(CPU=4.0), node(CPU=2.0, GPU=2.0, a100=1.0), node(alive=False, CPU=64.0, GPU=8.0, gone=1.0)]
    assert demand.why_unplaced(nodes) == text


def test_dead_nodes_are_avoided_unless_the_model_chooses_nodes_itself() -> None:
    assert NodeDemand().options() == {"num_cpus": 1, "num_gpus": 0}
    avoiding = NodeDemand(resources={"a100": 1}, label_selector={"zone": "a"}).options(avoid=["n1", "n2"])
    assert avoiding["label_selector"] == {"ray.io/node-id": "!in(n1,n2)", "zone": "a"}
    chosen = {"ray.io/node-id": "n1"}
    assert NodeDemand(label_selector=chosen).options(avoid=["n1"])["label_selector"] == chosen
