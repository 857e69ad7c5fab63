"""The client for browsers, against connections that say what the test wants."""

import subprocess
from pathlib import Path

from tests.programs import need_program

import torchserve_py.client

MODULE = Path(torchserve_py.client.__file__).with_name("live-session.js")


def test_no_step_waits_for_ever_after_the_last_answer_came_and_the_connection_broke_again() -> None:
    node = need_program("node")
    script = Path(__file__).with_name("broken_resumption.mjs")
    done = subprocess.run([node, script, MODULE.as_uri()], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "SessionClosed B\n"
