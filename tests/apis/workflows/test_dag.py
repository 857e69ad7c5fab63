"""The graph of a workflow: TorchServe's checks with its messages, and that cycles of any length are found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_py.apis.workflows.errors import InvalidDag
from torchserve_py.apis.workflows.spec import Dag


def test_parents_stand_before_their_children() -> None:
    dag = Dag({"join": ["post"], "pre": ["cat", "dog"], "cat": ["join"], "dog": ["join"]})
    assert list(dag.parents) in (["pre", "cat", "dog", "join", "post"], ["pre", "dog", "cat", "join", "post"])
    assert dag.parents["join"] == ("cat", "dog")
    assert dag.leaves == ("post",)


def test_a_node_may_be_alone() -> None:
    dag = Dag({"only": []})
    assert dag.parents == {"only": ()}
    assert dag.leaves == ("only",)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ({}, "DAG should have only one start node: there is no node"),
        ({"a": ["c"], "b": ["c"]}, "DAG should have only one start node: a, b"),
        (
            {"a": ["b"], "b": ["c"], "c": ["a"]},
            "DAG should have only one start node: every node is a child of another",
        ),
        ({"a": ["a"]}, "Self loop exception: a is a child of itself"),
        ({"s": ["a"], "a": ["b"], "b": ["a"]}, "loop exception: a and b are children of each other"),
        ({"a": ["b", "b"]}, "Not a valid DAG: a has the child b more than once"),
    ],
)
def test_other_shapes_are_refused(edges: dict[str, list[str]], message: str) -> None:
    with pytest.raises(InvalidDag) as error:
        Dag(edges)
    assert str(error.value) == message
    assert (error.value.status, error.value.error_type) == (400, "InvalidDAGException")


def test_a_longer_cycle_behind_the_start_node_is_found_and_shown() -> None:
    with pytest.raises(InvalidDag, match=r"^Not a valid DAG: it has the cycle") as error:
        Dag({"start": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]})
    cycle = str(error.value).partition("cycle ")[2].split(" → ")
    assert set(cycle) == {"a", "b", "c"}
    assert cycle[0] == cycle[-1]


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef"), max_size=4), max_size=6))
def test_any_graph_is_refused_or_can_be_run_in_its_order(edges: dict[str, list[str]]) -> None:
    try:
        dag = Dag(edges)
    except InvalidDag:
        return
    done: set[str] = set()
    for node, parents in dag.parents.items():
        assert done.issuperset(parents)
        assert all(node in edges[parent] for parent in parents)
        done.add(node)
    assert done == {*edges, *(child for children in edges.values() for child in children)}
    assert [node for node, parents in dag.parents.items() if not parents] == [next(iter(dag.parents))]
    assert all(not edges.get(leaf) for leaf in dag.leaves)


@pytest.mark.parametrize(
    ("edges", "is_chain"),
    [
        ({"a": []}, True),
        ({"b": ["c"], "a": ["b"]}, True),
        ({"a": ["b", "c"]}, False),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"]}, False),
    ],
)
def test_nodes_that_follow_one_another_are_a_chain(edges: dict[str, list[str]], is_chain: bool) -> None:
    assert Dag(edges).is_chain is is_chain
