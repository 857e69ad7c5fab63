"""The specification of a workflow: its models with their settings, and its graph, from a YAML file.

models:
    min-workers: 1          # defaults for all models, wherever they stand
    timeout-ms: 5000
    classifier:
        url: classifier.mar
        batch-size: 4
dag:
    prepare: [classifier]   # no model is called prepare: it is a function of the workflow's handler file
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from torchserve_py.apis.workflows.errors import InvalidDag, InvalidSpec, InvalidWorkflow
from torchserve_py.base.settings.schemas.schema import ClosedSchema, key, read
from torchserve_py.base.settings.schemas.values import Expected, Listed, Nested, integer
from torchserve_py.base.settings.schemas.yaml_mapping import UnreadableYaml, read_yaml_mapping

#: Each node is a model with workers of its own.
MAX_NODES = 100
AtLeastOne = Annotated[int, integer(1)]


class NodeSettings(ClosedSchema):
    """The settings of a model, or of all models directly under ``models``; ``max_workers`` workers are started."""

    min_workers: AtLeastOne = key("min-workers", "only shown, as in TorchServe; `max-workers` counts", "1", 1)
    max_workers: AtLeastOne = key("max-workers", "workers of the model", "1, or `min-workers` if that is more", 1)
    batch_size: AtLeastOne = key("batch-size", "requests in one batch; wins over `model-config.yaml`", "1", 1)
    max_batch_delay_ms: Annotated[int, integer(0, unit="milliseconds")] = key(
        "max-batch-delay", "how long a request may wait for a fuller batch; wins over `model-config.yaml`", "50", 50
    )
    attempts: AtLeastOne = key("retry-attempts", "how often a request tries the node; 1 means no second try", "1", 1)
    timeout_ms: Annotated[int, integer(1, unit="milliseconds")] = key(
        "timeout-ms",
        "how long one try may take, waiting for a worker included; a stream: to its first part",
        "10000",
        10000,
    )


class ModelKeys(NodeSettings):
    """A model of the workflow."""

    url: Annotated[str, Expected("the model's archive", lambda value: isinstance(value, str) and value != "")] = Field(
        description="the model: anything that a registration takes as `url`"
    )


_Model = Annotated[ModelKeys, Nested(f"a map with a url, or a setting: {', '.join(NodeSettings.key_names())}")]


class Models(NodeSettings):
    """``models``: settings of all models and, by its name, a map for each model."""

    model_config = ConfigDict(extra="allow")
    others = ModelKeys
    __pydantic_extra__: dict[str, _Model]


_Node = Annotated[str, Expected("text; put it in quotes", lambda value: isinstance(value, str) and value != "")]
_Children = Annotated[tuple[_Node, ...], Listed("a list of names")]


class SpecFile(ClosedSchema):
    """The file."""

    models: Annotated[Models, Nested()] = key(
        None, "the models, and settings of all of them", "", Models.model_validate({})
    )
    dag: Annotated[dict[_Node, _Children], Nested()] = key(
        None, "for each node a list of the nodes that get its answer", "", {}
    )


class Dag:
    """A directed graph with one start node and no cycles, made of the children of each node. Raises InvalidDag."""

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
        #: The nodes whose answers each node gets; parents come before their children.
        self.parents: Mapping[str, tuple[str, ...]] = {node: tuple(parents[node]) for node in _in_order(parents)}
        #: The nodes whose answers form the answer of the workflow.
        self.leaves = tuple(node for node in self.parents if not edges.get(node))
        #: Whether all nodes follow one another.
        self.is_chain = len(self.leaves) == 1 and all(len(children) <= 1 for children in edges.values())


@dataclass(frozen=True, slots=True)
class Node:
    """A node; ``url`` is the archive of its model, or None for a function of the handler file."""

    name: str
    url: str | None
    settings: NodeSettings


@dataclass(frozen=True, slots=True)
class WorkflowSpec:
    """A valid specification: its graph, the nodes of the graph, and the defaults for models."""

    dag: Dag
    nodes: Mapping[str, Node]
    defaults: NodeSettings

    @property
    def functions(self) -> list[str]:
        """Return the nodes that are functions of the handler file."""
        return [node.name for node in self.nodes.values() if node.url is None]


def read_spec(path: Path) -> WorkflowSpec:
    """Read a specification.

    Raises InvalidWorkflow: the file is missing or is no YAML mapping; InvalidSpec: keys are unknown or values are
    wrong, and the message has all of them; InvalidDag: the graph has not one start node, or has a cycle.
    """
    try:
        mapping = read_yaml_mapping(path)
    except (OSError, UnreadableYaml) as error:
        reason = str(error) if isinstance(error, UnreadableYaml) else error.strerror
        raise InvalidWorkflow(f"Invalid workflow specification {path.name}", reason or str(error)) from error
    file, wrong = read(SpecFile, mapping.values, lines=mapping.lines)
    problems = list(wrong.values())
    if problems and all(name.startswith("dag") for name in wrong):
        raise InvalidDag("Not a valid DAG", "; ".join(problems))
    defaults = _inheriting(file.models, NodeSettings(), "models", problems)
    models: dict[str, ModelKeys] = file.models.__pydantic_extra__
    nodes = {
        name: Node(name, model.url, _inheriting(model, defaults, f"models.{name}", problems))
        for name, model in models.items()
    }
    if problems:
        raise _invalid("; ".join(problems))
    if len(file.dag.keys() | {child for children in file.dag.values() for child in children}) > MAX_NODES:
        raise InvalidDag("Not a valid DAG", f"it has more than {MAX_NODES} nodes")
    dag = Dag({node: list(children) for node, children in file.dag.items()})
    unused = [name for name in nodes if name not in dag.parents]
    if unused:
        raise _invalid(f"models: {', '.join(unused)} is not in dag")
    return WorkflowSpec(dag, {name: nodes.get(name) or _function(name, defaults) for name in dag.parents}, defaults)


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


def _inheriting(given: NodeSettings, inherited: NodeSettings, place: str, problems: list[str]) -> NodeSettings:
    """Return the settings of a model, with inherited values for the keys that are not given."""
    own = given.model_dump(include=given.model_fields_set & NodeSettings.model_fields.keys())
    settings = inherited.model_copy(update=own)
    low, high = settings.min_workers, settings.max_workers
    if low > high:
        if "max_workers" in own:
            problems.append(f"{place}.max-workers is {high}, it must not be less than min-workers, which is {low}")
        return settings.model_copy(update={"max_workers": low})
    return settings


def _function(name: str, defaults: NodeSettings) -> Node:
    if not name.isidentifier():
        raise InvalidDag("Not a valid DAG", f"{name!r} is neither in models nor a possible name of a Python function")
    own = NodeSettings(max_batch_delay_ms=0, attempts=defaults.attempts, timeout_ms=defaults.timeout_ms)
    return Node(name, None, own)


def _invalid(problem: str) -> InvalidSpec:
    return InvalidSpec("Invalid workflow specification", problem)
