"""The client for browsers, against connections that say what the test wants."""

import shutil
import subprocess
from pathlib import Path

import pytest

import torchserve_py.client

MODULE = Path(torchserve_py.client.__file__).with_name("live-session.js")


def test_no_step_waits_for_ever_after_the_last_answer_came_and_the_connection_broke_again() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js")
    script = Path(__file__).with_name("broken_resumption.mjs")
    command = [node, "--experimental-default-type=module", script, MODULE.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "SessionClosed B\n"
