"""Which lines go to which file, and what an operator's own configuration changes."""

import errno
import json
import logging
import os
import re
import sys
import threading
from pathlib import Path

import pytest
from tests.ops.log_files.log_files import TIME, configure, lines, restored_loggers, write

from torchserve_py.base.logs import access_log
from torchserve_py.base.logs.unfit_characters import fit
from torchserve_py.base.settings.log_config import LogConfigError, read_log_config
from torchserve_py.ops.log_files.formatters import LineFormatter
from torchserve_py.ops.log_files.handlers import InThread, LogFile
from torchserve_py.ops.log_files.log_thread import log_thread, wait_until_written
from torchserve_py.ops.log_files.setup import apply_log_config

__all__ = ["restored_loggers"]

pytestmark = pytest.mark.usefixtures("restored_loggers")

DOCUMENT = Path(__file__).parents[3] / "docs" / "logging.md"


def test_lines_look_like_torchserves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(tmp_path)
    logging.getLogger("some.module").warning("a warning")
    logging.getLogger("some.module").debug("too fine")
    logging.getLogger("MODEL_LOG").info("hello", extra={"worker": "W-9000-m_1.0-stdout"})
    server, model = lines(tmp_path / "logs" / "ts_log.log")
    assert re.fullmatch(rf"{TIME} \[WARN \] main some\.module - a warning", server)
    assert re.fullmatch(rf"{TIME} \[INFO \] W-9000-m_1\.0-stdout MODEL_LOG - hello", model)
    assert lines(tmp_path / "logs" / "model_log.log") == [model]
    assert capsys.readouterr().out.splitlines() == [server, model]


def note_request(**ids: str | None) -> None:
    access_log.note(("127.0.0.1", 1), "GET", "/ping?a=ß", "HTTP/1.1", 200, 0.0071, ids)
    access_log.note(None, "GET", "/live", "HTTP/1.0", 503, 1.5)
    access_log.flush()
    assert wait_until_written(30)


REQUESTS = [r'/127\.0\.0\.1:1 "GET /ping\?a=\\xdf HTTP/1\.1" 200 7', '/unix "GET /live HTTP/1\\.0" 503 1500']


def test_requests_are_in_the_access_log_and_where_everything_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path)
    note_request()
    for line, text in zip(lines(tmp_path / "logs" / "access_log.log"), REQUESTS, strict=True):
        assert re.fullmatch(f"{TIME} - {text}", line)
    everywhere = lines(tmp_path / "logs" / "ts_log.log")
    for line, text in zip(everywhere, REQUESTS, strict=True):
        assert re.fullmatch(rf"{TIME} \[INFO \] main ACCESS_LOG - {text}", line)
    assert capsys.readouterr().out.splitlines() == everywhere


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("/predictions/m?a=b", "/predictions/m?a=b"),
        ("/models?url=m.mar&initial_workers=1", "/models?url=m.mar&initial_workers=1"),
        ("/models?url=https://h/m.mar", "/models?url=https://h/m.mar"),
        ("/models?url=https%3A%2F%2Fh%2Fm.mar", "/models?url=https%3A%2F%2Fh%2Fm.mar"),
        ("/models?url=https://u:pass@h:1/m.mar&x=1", "/models?url=https://***@h:1/m.mar&x=1"),
        ("/models?x=1&url=https%3A%2F%2Fu%3Apass%40h%2Fm.mar", "/models?x=1&url=https://***@h/m.mar"),
        ("/models?url=https://h/m.mar%3Fsig%3Dpass", "/models?url=https://h/m.mar?***"),
        (
            "/?api_key=pass&key=pass&auth=pass&monkey=1&author=1&keys=1",
            "/?api_key=***&key=***&auth=***&monkey=1&author=1&keys=1",
        ),
        (
            "/?X-API-Key=pass&apikey=pass&pwd=pass&a_passwd=pass&authorization=pass&k%65y=pass&key=",
            "/?X-API-Key=***&apikey=***&pwd=***&a_passwd=***&authorization=***&k%65y=***&key=",
        ),
        (
            "/?a=1;key=pass;b=2&key[]=pass&resume=pass&sas=pass&accessKeyId=pass&resumed=1&keyboard=1",
            "/?a=1;key=***;b=2&key[]=***&resume=***&sas=***&accessKeyId=***&resumed=1&keyboard=1",
        ),
        (
            "/?to=http://u:pass@h/&next=http%3A%2F%2Fu%3Apass%40h%2F&mail=a@b",
            "/?to=http://***@h/&next=http://***@h/&mail=a@b",
        ),
        (
            "/models?url=https://h/m.mar?a=pass&X-Amz-Signature=pass",
            "/models?url=https://h/m.mar?***&X-Amz-Signature=***",
        ),
        ("/models?url=https://[pass", "/models?url=***"),
        ("/models?next_page_token=2", "/models?next_page_token=2"),
        ("/predictions/m?access_token=pass", "/predictions/m?access_token=***"),
    ],
)
def test_the_access_log_shows_no_secrets_of_urls(tmp_path: Path, target: str, shown: str) -> None:
    configure(tmp_path)
    access_log.note(("127.0.0.1", 1), "POST", target, "HTTP/1.1", 200, 0.0)
    access_log.flush()
    assert wait_until_written(30)
    (line,) = lines(tmp_path / "logs" / "access_log.log")
    assert line.endswith(f'"POST {shown} HTTP/1.1" 200 0')


@pytest.mark.parametrize("mode", ["log", "legacy", "prometheus"])
def test_the_files_of_torchserve_are_there_from_the_start(tmp_path: Path, mode: str) -> None:
    configure(tmp_path, metrics_location=tmp_path / "logs", metrics_mode=mode)
    files = ["access_log.log", "model_log.log", "model_metrics.log", "ts_log.log", "ts_metrics.log"]
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == files


def test_without_an_access_log_there_is_no_file(tmp_path: Path) -> None:
    configure(tmp_path, access_log=False)
    assert not (tmp_path / "logs" / "access_log.log").exists()


@pytest.mark.parametrize("mode", ["log", "legacy"])
def test_metrics_have_files_of_their_own_and_are_on_standard_output(
    tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path, metrics_mode=mode)
    write("TS_METRICS", "one", "two")
    write("MODEL_METRICS", "three")
    server, model = (lines(tmp_path / "metrics" / f"{name}_metrics.log") for name in ("ts", "model"))
    assert [re.sub(f"^{TIME} - ", "", line) for line in [*server, *model]] == ["one", "two", "three"]
    shown = capsys.readouterr().out.splitlines()
    assert [re.sub(rf"^{TIME} \[INFO \] ", "", line) for line in shown] == [
        "main TS_METRICS - one",
        "main TS_METRICS - two",
        "main MODEL_METRICS - three",
    ]
    assert lines(tmp_path / "logs" / "ts_log.log") == []


@pytest.mark.parametrize("is_own", [True, False])
def test_metrics_are_shown_on_a_terminal_of_the_servers_own_session_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], is_own: bool
) -> None:
    def owner(descriptor: int) -> int:
        if is_own:
            return os.getpgrp()
        raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1)
    monkeypatch.setattr(os, "tcgetpgrp", owner)
    configure(tmp_path)
    write("TS_METRICS", "one")
    assert lines(tmp_path / "metrics" / "ts_metrics.log")[0].endswith(" - one")
    assert ("TS_METRICS - one" in capfd.readouterr().out) == is_own


def test_the_prometheus_mode_does_without_a_place_for_metric_logs(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text("no directory")
    configure(tmp_path, metrics_mode="prometheus")
    assert wait_until_written(30)
    assert "There are no metric logs" in (tmp_path / "logs" / "ts_log.log").read_text()
    with pytest.raises(OSError, match="metrics"):
        configure(tmp_path, metrics_mode="log")


def test_files_rotate(tmp_path: Path) -> None:
    configure(tmp_path)
    (in_thread,) = logging.getLogger("MODEL_LOG").handlers
    (handler,) = in_thread.handlers  # type: ignore[attr-defined]
    assert (handler.maxBytes, handler.backupCount) == (100 * 1024 * 1024, 5)  # type: ignore[attr-defined]


CONFIG = {
    "version": 1,
    "formatters": {"line": {"()": "torchserve_py.ops.log_files.formatters.LineFormatter"}},
    "handlers": {"file": {"class": "logging.FileHandler", "formatter": "line"}},
    "root": {"level": "WARNING", "handlers": ["file"]},
}


def own(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["log.json", "log.yaml"])
def test_an_own_configuration_replaces_the_built_in_one(tmp_path: Path, name: str) -> None:
    logger = logging.getLogger("some.module")  # there before the configuration, as every module's is
    CONFIG["handlers"]["file"]["filename"] = str(tmp_path / "own.log")  # type: ignore[index]
    configure(tmp_path, log_config=own(tmp_path, name, json.dumps(CONFIG)))
    logger.warning("kept")
    logger.info("too fine")
    (line,) = lines(tmp_path / "own.log")
    assert re.fullmatch(rf"{TIME} \[WARN \] main some\.module - kept", line)
    assert not (tmp_path / "logs" / "ts_log.log").exists()


@pytest.mark.parametrize("named", [True, False])
def test_metric_logs_stay_unless_the_own_configuration_names_them(tmp_path: Path, named: bool) -> None:
    loggers = {"MODEL_METRICS": {"level": "INFO", "handlers": ["null"], "propagate": False}} if named else {}
    config = {"version": 1, "handlers": {"null": {"class": "logging.NullHandler"}}, "loggers": loggers}
    configure(tmp_path, log_config=own(tmp_path, "log.json", json.dumps(config)))
    for name in ("TS_METRICS", "MODEL_METRICS"):
        write(name, "line")
    written = {path.name for path in (tmp_path / "metrics").iterdir()}
    assert written == ({"ts_metrics.log"} if named else {"ts_metrics.log", "model_metrics.log"})


def test_a_log4j_file_changes_nothing(tmp_path: Path) -> None:
    configure(tmp_path, log_config=own(tmp_path, "log4j2.xml", "<Configuration/>"))
    logging.getLogger("some.module").warning("as ever")
    assert len(lines(tmp_path / "logs" / "ts_log.log")) == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("log.json", "{", "no valid JSON: Expecting property name"),
        ("log.yaml", "a: [", "not valid YAML: while parsing"),
        ("log.yaml", "version: 2", "it must be a mapping with version: 1"),
        ("log.yaml", "- 1", "the file must hold 'key: value' lines, not a list"),
        ("log.yaml", "{version: 1, root: {handlers: [nobody]}}", "log.yaml: Unable to configure root logger"),
        ("log.yaml", "{version: 1, handlers: {a: {class: no.such.Handler}}}", "Unable to configure handler 'a'"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(LogConfigError) as error:
        apply_log_config(own(tmp_path, name, text))
    assert message in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LogConfigError, match="it cannot be read"):
        read_log_config(tmp_path / "none.json")


def test_the_documented_configuration_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    configure(tmp_path, log_config=own(tmp_path, "log.yaml", example))
    logging.getLogger("some.module").info("text")
    logging.getLogger("MODEL_LOG").info("hello", extra={"worker": "W-9000-m_1.0-stdout"})
    assert capsys.readouterr().out == "INFO some.module: text\n"
    (line,) = lines(tmp_path / "model_log.log")
    assert line.endswith("[INFO ] W-9000-m_1.0-stdout MODEL_LOG - hello")


def test_an_own_configuration_gets_a_record_for_each_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "version": 1,
        "formatters": {"own": {"format": "%(name)s %(status)s %(request_id)s: %(message)s"}},
        "handlers": {"out": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "own"}},
        "loggers": {"ACCESS_LOG": {"level": "INFO", "handlers": ["out"], "propagate": False}},
    }
    configure(tmp_path, log_config=own(tmp_path, "log.json", json.dumps(config)))
    access_log.note(("127.0.0.1", 1), "GET", "/ping", "HTTP/1.1", 200, 0.0, {"request_id": "r"})
    access_log.note(("127.0.0.1", 1), "GET", "/live", "HTTP/1.1", 200, 0.0, {"request_id": "s"})
    access_log.flush()
    assert capsys.readouterr().out.splitlines() == [
        'ACCESS_LOG 200 r: /127.0.0.1:1 "GET /ping HTTP/1.1" 200 0',
        'ACCESS_LOG 200 s: /127.0.0.1:1 "GET /live HTTP/1.1" 200 0',
    ]


def test_json_lines_hold_what_is_known_of_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(tmp_path, log_format="json")
    note_request(request_id="r-1", sequence_id=None)
    write("TS_METRICS", "metric")
    logging.getLogger("MODEL_LOG").info("two\nlines “quoted”", extra={"worker": "W-9000-m_1.0-stdout"})
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("some.module").exception("It failed")
    access, _ = [json.loads(line) for line in lines(tmp_path / "logs" / "access_log.log")]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", access.pop("time"))
    assert access == {
        "level": "INFO",
        "logger": "ACCESS_LOG",
        "message": '/127.0.0.1:1 "GET /ping?a=\\xdf HTTP/1.1" 200 7',
        "request_id": "r-1",
        "client": "127.0.0.1:1",
        "status": 200,
        "milliseconds": 7,
    }
    (model,) = [json.loads(line) for line in lines(tmp_path / "logs" / "model_log.log")]
    assert (model["message"], model["worker"]) == ("two\nlines “quoted”", "W-9000-m_1.0-stdout")
    failed = json.loads(lines(tmp_path / "logs" / "ts_log.log")[-1])
    assert (failed["level"], failed["message"]) == ("ERROR", "It failed")
    assert failed["exception"].endswith("ValueError: wrong")


def test_each_line_of_what_a_worker_has_logged_is_a_line_of_the_log(tmp_path: Path) -> None:
    configure(tmp_path)
    about = {"worker": "W-9000-m_1.0-stdout", "exception": f"Traceback:\n{FORGED}"}
    model_log = logging.getLogger("MODEL_LOG")
    record = model_log.makeRecord("MODEL_LOG", logging.DEBUG, "", 0, "one\ntwo", (), None, extra=about)
    record.exc_text = about["exception"]
    model_log.handle(record)
    written = lines(tmp_path / "logs" / "model_log.log")
    head = rf"{TIME} \[DEBUG\] W-9000-m_1\.0-stdout MODEL_LOG - "
    assert all(re.match(head, line) for line in written)
    texts = [re.sub(head, "", line, count=1) for line in written]
    assert texts == ["one", "two", "Traceback:", "1.0", fit(FORGED.partition("\n")[2])]


FORGED = "1.0\n2024-05-30T21:46:03,625 [INFO ] main torchserve_py.server - all is well\x1b[2J\r\u2028\u202e"


def test_text_from_outside_forges_no_line_and_steers_no_terminal(tmp_path: Path) -> None:
    configure(tmp_path)
    logger = logging.getLogger("some.module")
    logger.info("Model %s version %s is registered (%d %%)", "m", FORGED, 7)
    logger.info("%(version)s", {"version": FORGED})
    logger.info(FORGED)
    logger.info("%r and %s", [FORGED], ValueError(FORGED))
    assert wait_until_written(30)
    written = (tmp_path / "logs" / "ts_log.log").read_text()
    assert len(written.split("\n")) == 5
    assert not set("\x1b\r\u2028\u202e") & set(written)
    first = written.split("\n")[0]
    assert r"Model m version 1.0\n2024-05-30T21:46:03,625 [INFO ] main torchserve_py.server - all is well\x1b" in first
    assert first.endswith(r"\r\u2028\u202e is registered (7 %)")


def test_a_target_forges_no_line_of_the_access_log(tmp_path: Path) -> None:
    configure(tmp_path)
    access_log.note(None, "gRPC", f"/a.Service/{FORGED}", "HTTP/2", 12, 0.0)
    access_log.flush()
    assert wait_until_written(30)
    (line,) = lines(tmp_path / "logs" / "access_log.log")
    assert r"/a.Service/1.0\n2024-05-30" in line
    assert "\x1b" not in line


def test_a_target_forges_no_status_in_the_access_log(tmp_path: Path) -> None:
    configure(tmp_path)
    access_log.note(("127.0.0.1", 1), "GET", '/a HTTP/1.1" 200 0 "', "HTTP/1.1", 404, 0.0)
    access_log.flush()
    assert wait_until_written(30)
    (line,) = lines(tmp_path / "logs" / "access_log.log")
    assert line.endswith('"GET /a HTTP/1.1%22 200 0 %22 HTTP/1.1" 404 0')


def test_line_breaks_of_the_servers_own_stay(tmp_path: Path) -> None:
    configure(tmp_path)
    logging.getLogger("some.module").warning("Do this:\n\n%s\n", "one\ntwo")
    assert lines(tmp_path / "logs" / "ts_log.log")[2:] == ["one\\ntwo", ""]


def test_the_text_of_an_exception_forges_no_line(tmp_path: Path) -> None:
    configure(tmp_path)
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError(FORGED) from error
    except ValueError:
        logging.getLogger("some.module").exception("It failed")
    head, *traceback = lines(tmp_path / "logs" / "ts_log.log")
    assert head.endswith("some.module - It failed")
    assert "ValueError: 1.0" in traceback
    assert not any(line.startswith("2024") for line in traceback)
    assert "The above exception was the direct cause of the following exception:" in traceback


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device here")
def test_a_full_disk_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    handler = LogFile("/dev/full", delay=True)
    handler.setFormatter(LineFormatter())
    logger = logging.getLogger("some.module")
    logger.propagate, logger.handlers = False, [handler]
    for number in range(1000):
        logger.warning("line %d", number)
    (told,) = capsys.readouterr().err.splitlines()
    full = "[Errno 28] No space left on device"
    assert told == f"Log lines cannot be written to /dev/full: {full}; lost so far: 1"
    logger.handlers = []
    with pytest.raises(OSError, match="No space left"):
        handler.close()


def test_a_line_that_cannot_be_written_costs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    class Choosy(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "bad":
                raise ValueError("not this line")
            written.append(record.getMessage())

    written: list[str] = []
    may_write = threading.Event()
    log_thread.put([(lambda _: None if may_write.wait(30) else pytest.fail("the test never let it write"), "")], 1, 0)
    threaded = InThread(Choosy())
    for text in ("first", "bad", "last"):  # together in one piece of work, since the thread is busy
        threaded.emit(logging.makeLogRecord({"msg": text, "levelno": logging.INFO}))
    may_write.set()
    assert wait_until_written(30)
    assert written == ["first", "last"]
    assert "not this line" in capsys.readouterr().err


def test_a_file_of_the_log_that_is_full_is_followed_by_another(tmp_path: Path) -> None:
    path = tmp_path / "some.log"
    path.write_text("é" * 20 + "\n")  # 41 bytes, of an earlier run
    handler = LogFile(path, maxBytes=100, backupCount=2, encoding="utf-8")
    logger = logging.getLogger("some.module")
    logger.propagate, logger.handlers = False, [handler]
    for text in ("é" * 20, "a" * 30, "b" * 40, "c" * 90, "d", "e" * 10):
        logger.warning(text)
    handler.close()
    kept = [path.with_name(name).read_text().split() for name in ("some.log.2", "some.log.1", "some.log")]
    assert kept == [["a" * 30, "b" * 40], ["c" * 90, "d"], ["e" * 10]]


@pytest.mark.parametrize("creates", [True, False])
def test_a_file_that_another_program_rotates_is_opened_again(
    tmp_path: Path, creates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchserve_py.ops.log_files.handlers._LOOK_INTERVAL", 0.0)
    path = tmp_path / "some.log"
    handler = LogFile(path, maxBytes=1000, encoding="utf-8")
    logger = logging.getLogger("some.module")
    logger.propagate, logger.handlers = False, [handler]
    logger.warning("before")
    path.rename(tmp_path / "some.log.1")
    if creates:
        path.touch()
    logger.warning("after")
    handler.close()
    assert [(tmp_path / name).read_text() for name in ("some.log.1", "some.log")] == ["before\n", "after\n"]
