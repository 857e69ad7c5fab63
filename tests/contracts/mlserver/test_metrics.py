"""Values that a model reports wait for its next answer; only a model's code can report any."""

import logging
from collections.abc import Iterator

import pytest
from mlserver import ModelSettings, Settings, log, register
from mlserver.context import model_context
from mlserver.logging import ModelLoggerFormatter
from mlserver.metrics.errors import InvalidModelContext

from ts.contracts.mlserver import reported_metrics
from ts.contracts.mlserver.reported_metrics import take_records

SETTINGS = ModelSettings(implementation="a.B", name="mine", parameters={"version": "v1"})


@pytest.fixture(autouse=True)
def nothing_reported() -> Iterator[None]:
    reported_metrics.forward()
    take_records()
    yield
    take_records()


def test_values_are_labelled_with_the_model() -> None:
    with model_context(SETTINGS):
        log(size=1, length=2.5)
        register("depth", "how deep").labels(model_name="mine", model_version="v1").observe(3)
    records = take_records()
    labels = [["model_name", "mine"], ["model_version", "v1"]]
    assert [(record[0], record[3], record[4]) for record in records] == [
        ("size", 1.0, labels),
        ("length", 2.5, labels),
        ("depth", 3.0, labels),
    ]
    assert take_records() == []


def test_other_code_cannot_report() -> None:
    with pytest.raises(InvalidModelContext, match="outside of a model context") as caught:
        log(size=1)
    assert caught.value.status_code == 500


def test_a_model_that_never_answers_keeps_the_newest_values_only() -> None:
    with model_context(SETTINGS):
        for number in range(10_005):
            log(number=number)
    records = take_records()
    assert (len(records), records[-1][3]) == (10_000, 10_004.0)


@pytest.mark.parametrize(
    ("structured", "line"),
    [
        (False, "[mlserver][mine:v1] INFO - hello"),
        (
            True,
            '"name": "mlserver", "level": "INFO", "message": "hello" , "model_name": "mine", "model_version": "v1"}',
        ),
    ],
)
def test_log_lines_say_which_model_they_come_from(structured: bool, line: str) -> None:
    formatter = ModelLoggerFormatter(Settings(use_structured_logging=structured))
    record = logging.LogRecord("mlserver", logging.INFO, "file", 1, "hello", (), None)
    with model_context(SETTINGS):
        assert line in formatter.format(record)
    assert "mine" not in formatter.format(record)
