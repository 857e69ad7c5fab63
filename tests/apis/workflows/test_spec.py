"""The specification: defaults and overrides, functions, and what is wrong with one."""

from pathlib import Path

import pytest

from torchserve_py.apis.workflows.errors import InvalidDag, InvalidSpec, InvalidWorkflow, WorkflowError
from torchserve_py.apis.workflows.spec import ModelKeys, NodeSettings, WorkflowSpec, read_spec
from torchserve_py.tools.operator_tools.print_config import table


def spec_of(folder: Path, text: str) -> WorkflowSpec:
    path = folder / "spec.yaml"
    path.write_text(text)
    return read_spec(path)


def test_a_specification_as_torchserves_documentation_writes_it(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        """
        models:
            #global model params
            min-workers: 1
            max-workers: 2
            batch-size: 3
            max-batch-delay : 5000
            retry-attempts : 3
            timeout-ms : 5000
            m1:
                url: model1.mar
                max-workers: 4
                batch-size: 5
            m2:
                url : model2.mar
        dag:
            pre_processing : [m1]
            m1 : [m2]
            m2 : [postprocessing]
        """,
    )
    common = NodeSettings(max_workers=2, batch_size=3, max_batch_delay_ms=5000, attempts=3, timeout_ms=5000)
    function = NodeSettings(max_batch_delay_ms=0, attempts=3, timeout_ms=5000)
    assert spec.defaults == common
    assert {name: (node.url, node.settings) for name, node in spec.nodes.items()} == {
        "pre_processing": (None, function),
        "m1": (
            "model1.mar",
            NodeSettings(max_workers=4, batch_size=5, max_batch_delay_ms=5000, attempts=3, timeout_ms=5000),
        ),
        "m2": ("model2.mar", common),
        "postprocessing": (None, function),
    }
    assert spec.functions == ["pre_processing", "postprocessing"]
    assert spec.dag.edges == {"pre_processing": ["m1"], "m1": ["m2"], "m2": ["postprocessing"]}


def test_torchserves_defaults(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "models: {m: {url: m.mar}}\ndag: {m: [f]}\n")
    assert spec.nodes["m"].settings == NodeSettings()
    assert spec.nodes["f"].settings == NodeSettings(max_batch_delay_ms=0)


def test_defaults_count_wherever_they_stand(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "models: {m: {url: m.mar}, timeout-ms: 7}\ndag: {m: }\n")
    assert spec.nodes["m"].settings.timeout_ms == 7


def test_more_workers_at_least_are_more_at_most(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "models: {m: {url: m.mar, min-workers: 3}}\ndag: {m: []}\n")
    assert spec.nodes["m"].settings.max_workers == 3


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            "models: {m: {url: m.mar}}\ndag: {m: []}\nextra: 1",
            InvalidSpec,
            "extra is not known; known are models",
        ),
        ("models: {m: {}}\ndag: {m: []}", InvalidSpec, "models.m.url is missing, it must be the model's archive"),
        (
            "models: {max-worker: 3}\ndag: {}",
            InvalidSpec,
            "max-worker is 3 (int), it must be a map with a url",
        ),
        (
            "models: {m: {url: m.mar, max-worker: 3}}\ndag: {m: []}",
            InvalidSpec,
            "models.m.max-worker is not known",
        ),
        (
            "models: {timeout-ms: 0}\ndag: {m: []}",
            InvalidSpec,
            "models.timeout-ms is 0 (int), it must be",
        ),
        ("models: {m: }\ndag: {m: []}", InvalidSpec, "models.m is None (NoneType), it must be a map with a url"),
        (
            "models: {1: {url: m.mar}}\ndag: {m: []}",
            InvalidSpec,
            "models[1] is a key that is not text; put it in quotes",
        ),
        ("dag: {f: [g, 2]}", InvalidDag, "dag.f[1] is 2 (int), it must be text; put it in quotes"),
        (
            "models: {retry-attempts: yes}\ndag: {m: []}",
            InvalidSpec,
            "models.retry-attempts is True (bool)",
        ),
        (
            "models: {m: {url: m.mar, min-workers: 3, max-workers: 2}}\ndag: {m: []}",
            InvalidSpec,
            "models.m.max-workers is 2, it must not be less than min-workers, which is 3",
        ),
        ("models: {m: {url: m.mar}}\ndag: {f: []}", InvalidSpec, "models: m is not in dag"),
        ("models: []\ndag: {f: []}", InvalidSpec, "models is [] (list), it must be a map"),
        ("dag: {f: g}", InvalidDag, "dag.f is 'g' (str), it must be a list of names"),
        ("dag: {1: [f]}", InvalidDag, "dag[1] is 1 (int), it must be text; put it in quotes"),
        ("dag: {no-function: []}", InvalidDag, "'no-function' is neither in models nor a possible name"),
        ("dag: {f: [f]}", InvalidDag, "Self loop exception"),
        ("", InvalidDag, "DAG should have only one start node"),
        ("dag: [", InvalidWorkflow, "Invalid workflow specification spec.yaml: not valid YAML"),
        ("- 1", InvalidWorkflow, "the file must hold 'key: value' lines, not a list"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, kind: type[WorkflowError], message: str) -> None:
    with pytest.raises(kind) as error:
        spec_of(tmp_path, text)
    assert message in str(error.value)


def test_everything_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec) as error:
        spec_of(tmp_path, "more: 1\nmodels: {timeout-ms: 0, m: {batch-size: x}}\n")
    message = str(error.value)
    for each in (
        "line 1: more is not known",
        "models.timeout-ms is 0",
        "models.m.batch-size is 'x'",
        "m.url is missing",
    ):
        assert each in message


def test_the_document_has_the_rows_of_the_schema() -> None:
    document = (Path(__file__).parents[3] / "docs" / "workflows.md").read_text(encoding="utf-8")
    assert [row for row in table(ModelKeys) if row not in document] == []


def test_a_missing_file_is_torchserves_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidWorkflow, match=r"spec\.yaml: No such file") as error:
        read_spec(tmp_path / "spec.yaml")
    assert (error.value.status, error.value.error_type) == (500, "InvalidWorkflowException")
