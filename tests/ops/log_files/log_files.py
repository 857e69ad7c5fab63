"""Log files as the server configures them."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from torchserve_py.base.logs import access_log
from torchserve_py.base.logs.line_logs import TAKES_BATCHES, TEXT_ONLY, LineLog
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.ops.log_files.log_thread import wait_until_written
from torchserve_py.ops.log_files.setup import configure_logging

LOGGERS = (None, "MODEL_LOG", "ACCESS_LOG", "TS_METRICS", "MODEL_METRICS", "some.module")
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}"


@pytest.fixture
def restored_loggers() -> Iterator[None]:
    """After the test the loggers are what they were before; what tests before it have left is written elsewhere."""
    access_log.flush()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    kinds = [(kind, set(kind)) for kind in (TAKES_BATCHES, TEXT_ONLY)]
    yield
    for kind, names in kinds:
        kind.clear()
        kind.update(names)
    for logger, handlers, level, propagate in before:
        for handler in logger.handlers:
            if handler not in handlers:
                handler.close()
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def configure(tmp_path: Path, **changes: object) -> None:
    """Configure the logs of a server whose files are below the path."""
    settings = {"model_store": tmp_path, "log_location": tmp_path / "logs", "metrics_location": tmp_path / "metrics"}
    configure_logging(server_settings()(**settings | changes))  # type: ignore[arg-type]


def lines(path: Path) -> list[str]:
    """The lines of a file of the log, once all that was logged is written."""
    assert wait_until_written(30)
    return path.read_text().splitlines()


def texts_of(texts: Sequence[str], start: str, second: int) -> list[str]:
    """The texts of entries that are their lines."""
    return [start + text.replace("\n", f"\n{start}") for text in texts]


def write(logger: str, *texts: str) -> None:
    """What the server does with lines of a log that has many."""
    log: LineLog[str] = LineLog(logger, texts_of)
    for text in texts:
        log.note(text)
    log.flush()
    assert wait_until_written(30)
