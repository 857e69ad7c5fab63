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

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchserve_py.schemas.values import MAX_INT
from torchserve_py.schemas.yaml_mapping import UnreadableYaml, read_yaml_mapping
from torchserve_py.workflows.dag import Dag
from torchserve_py.workflows.errors import InvalidDag, InvalidSpec, InvalidWorkflow

#: Each node is a model with workers of its own.
MAX_NODES = 100
#: Key to field, default and minimum.
_SETTINGS = {
    "min-workers": ("min_workers", 1, 1),
    "max-workers": ("max_workers", 1, 1),
    "batch-size": ("batch_size", 1, 1),
    "max-batch-delay": ("max_batch_delay_ms", 50, 0),
    "retry-attempts": ("attempts", 1, 1),
    "timeout-ms": ("timeout_ms", 10000, 1),
}
_DEFAULTS = {field: default for field, default, _ in _SETTINGS.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """How a node is run.

    Attributes:
        min_workers: Shown, and no more than ``max_workers``, of which TorchServe starts as many.
        max_batch_delay_ms: How long its model waits for a fuller batch.
        attempts: How often a request tries the node; 1 = no second try.
        timeout_ms: How long one try may take.
    """

    min_workers: int
    max_workers: int
    batch_size: int
    max_batch_delay_ms: int
    attempts: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node; ``url`` is its model's archive, None for a function of the handler file."""

    name: str
    url: str | None
    settings: NodeSettings


@dataclass(frozen=True, slots=True)
class WorkflowSpec:
    """A valid specification: its graph, every node of it, and the defaults for models."""

    dag: Dag
    nodes: Mapping[str, Node]
    defaults: NodeSettings

    @property
    def functions(self) -> list[str]:
        """The nodes that are functions of the handler file."""
        return [node.name for node in self.nodes.values() if node.url is None]


def read_spec(path: Path) -> WorkflowSpec:
    """Read a specification.

    Raises:
        InvalidWorkflow: There is no such file, or it is no YAML mapping.
        InvalidSpec: A key or a value is not one that there is.
        InvalidDag: The graph is not one that a request can run through.
    """
    try:
        values = read_yaml_mapping(path).values
    except (OSError, UnreadableYaml) as error:
        reason = str(error) if isinstance(error, UnreadableYaml) else error.strerror
        raise InvalidWorkflow(f"Invalid workflow specification {path.name}", reason or str(error)) from error
    return parse_spec(values)


def parse_spec(values: Mapping[Any, Any]) -> WorkflowSpec:
    """Make sense of what a specification says.

    Raises:
        InvalidSpec: A key or a value is not one that there is.
        InvalidDag: The graph is not one that a request can run through.
    """
    unknown = [str(key) for key in values if key not in ("models", "dag")]
    if unknown:
        raise _invalid(f"{', '.join(unknown)} is not a key of it; there are models and dag")
    models = _mapping("models", values.get("models"))
    defaults = _settings("models", {key: value for key, value in models.items() if key in _SETTINGS}, _DEFAULTS)
    nodes = {name: _model(name, models[name], defaults) for name in models if name not in _SETTINGS}
    dag = Dag(_edges(values.get("dag")))
    unused = [name for name in nodes if name not in dag.parents]
    if unused:
        raise _invalid(f"models: {', '.join(unused)} is not in dag")
    return WorkflowSpec(dag, {name: nodes.get(name) or _function(name, defaults) for name in dag.parents}, defaults)


def _model(name: Any, values: Any, defaults: NodeSettings) -> Node:
    where = f"models.{name}"
    if not isinstance(name, str) or not name:
        raise _invalid(f"models: the name {name!r} must be text; put it in quotes")
    if not isinstance(values, Mapping):
        raise _invalid(f"{where} must be a mapping with a url, or a setting: {', '.join(_SETTINGS)}")
    url = values.get("url")
    if not isinstance(url, str) or not url:
        raise _invalid(f"{where}.url must name the model's archive, it is {url!r}")
    inherited = {field: getattr(defaults, field) for field in _DEFAULTS}
    return Node(name, url, _settings(where, {key: values[key] for key in values if key != "url"}, inherited))


def _function(name: str, defaults: NodeSettings) -> Node:
    if not name.isidentifier():
        raise InvalidDag("Not a valid DAG", f"{name!r} is neither in models nor a possible name of a Python function")
    return Node(
        name,
        None,
        NodeSettings(
            min_workers=1,
            max_workers=1,
            batch_size=1,
            max_batch_delay_ms=0,
            attempts=defaults.attempts,
            timeout_ms=defaults.timeout_ms,
        ),
    )


def _settings(where: str, given: Mapping[Any, Any], inherited: Mapping[str, int]) -> NodeSettings:
    settings = dict(inherited)
    for key, value in given.items():
        if key not in _SETTINGS:
            raise _invalid(f"{where}.{key} is not a setting; there are url, {', '.join(_SETTINGS)}")
        field, _, minimum = _SETTINGS[key]
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= MAX_INT:
            raise _invalid(f"{where}.{key} must be an integer from {minimum} to {MAX_INT}, it is {value!r}")
        settings[field] = value
    low, high = settings["min_workers"], settings["max_workers"]
    if low > high:
        if "max-workers" in given:
            raise _invalid(f"{where}.max-workers is {high}, it must not be less than min-workers, which is {low}")
        settings["max_workers"] = low
    return NodeSettings(**settings)


def _edges(values: Any) -> dict[str, list[str]]:
    edges: dict[str, list[str]] = {}
    for node, given in _mapping("dag", values).items():
        if not isinstance(node, str) or not node:
            raise InvalidDag("Not a valid DAG", f"the node {node!r} must be text; put it in quotes")
        children = [] if given is None else given
        if not isinstance(children, list) or not all(isinstance(child, str) and child for child in children):
            raise InvalidDag("Not a valid DAG", f"the children of {node} must be a list of names, not {children!r}")
        edges[node] = children
        if len(edges) > MAX_NODES or len(children) > MAX_NODES:
            raise InvalidDag("Not a valid DAG", f"it has more than {MAX_NODES} nodes")
    if len(edges.keys() | {child for children in edges.values() for child in children}) > MAX_NODES:
        raise InvalidDag("Not a valid DAG", f"it has more than {MAX_NODES} nodes")
    return edges


def _mapping(name: str, value: Any) -> Mapping[Any, Any]:
    value = {} if value is None else value
    if not isinstance(value, Mapping):
        raise _invalid(f"{name} must be a mapping, it is {value!r}")
    return value


def _invalid(problem: str) -> InvalidSpec:
    return InvalidSpec("Invalid workflow specification", problem)
