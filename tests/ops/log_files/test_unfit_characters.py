"""No character of a text from outside forges, hides or breaks a log line, in any part of it and in either format."""

import json
import logging
from pathlib import Path

import pytest
from tests.ops.log_files.log_files import configure, lines, restored_loggers

from torchserve_py.base.logs import access_log
from torchserve_py.ops.log_files.log_thread import wait_until_written

__all__ = ["restored_loggers"]

pytestmark = pytest.mark.usefixtures("restored_loggers")

CONTROLS = [*range(9), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
DIRECTIONS = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
SURROGATES = "\ud800\udc80\udfff"
UNFIT = "".join(map(chr, (*CONTROLS, *DIRECTIONS)))
FIT = "a\tß “quoted” 漢字 \N{GRINNING FACE} \\"


def write_all() -> None:
    """Write every kind of line, each with such characters wherever they can come in."""
    text = f"{FIT}{UNFIT}{SURROGATES}"
    logging.getLogger("some.module").info("%s of %r", text, [text])
    about = {"worker": f"W-9000-{text}-stdout", "exception": f"Traceback {text}", "request_ids": [text]}
    logging.getLogger("MODEL_LOG").info(text, extra=about)
    try:
        exec(compile("raise ValueError(text)", f"{text}.py", "exec"), {"text": text})
    except ValueError:
        logging.getLogger("some.module").exception(text)
    access_log.note(("::1", 1), "GET", f"/{text}", "HTTP/1.1", 200, 0.0, {"sequence_id": text, "model": text}, text)
    access_log.flush()
    assert wait_until_written(30)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_part_of_a_line_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str], log_format: str) -> None:
    configure(tmp_path, log_format=log_format)
    write_all()
    printed = capsys.readouterr()
    written = {
        name: (tmp_path / "logs" / name).read_bytes().decode()
        for name in ("ts_log.log", "access_log.log", "model_log.log")
    }
    assert all(written.values())
    for shown in (*written.values(), printed.out):
        assert not set(f"{UNFIT}{SURROGATES}") & set(shown)
    assert printed.err == ""


def test_readers_of_json_get_the_text(tmp_path: Path) -> None:
    configure(tmp_path, log_format="json")
    logging.getLogger("MODEL_LOG").info(f"{FIT}\n{UNFIT}")
    logging.getLogger("MODEL_LOG").info(f"{FIT}{SURROGATES}")
    whole, halves = [json.loads(line)["message"] for line in lines(tmp_path / "logs" / "model_log.log")]
    assert whole == f"{FIT}\n{UNFIT}"
    assert halves == rf"{FIT}\ud800\udc80\udfff"
