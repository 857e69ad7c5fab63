"""The client for browsers, against connections that say what the test wants."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import torchserve_py.client
from torchserve_py.client import session_progress

MODULE = Path(torchserve_py.client.__file__).with_name("live-session.js")


def said_by(script: str) -> list[str]:
    """Run a script that lies beside this file; return the lines that it prints."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js")
    command = [node, "--experimental-default-type=module", Path(__file__).with_name(script), MODULE.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout.splitlines()


def test_no_step_waits_for_ever_after_the_last_answer_came_and_the_connection_broke_again() -> None:
    assert said_by("broken_resumption.mjs") == ["SessionClosed B"]


def test_a_step_of_unknown_outcome_is_asked_for_until_it_is_told() -> None:
    assert said_by("open_step.mjs") == ['{"step":1,"body":"a","end":false}'] * 3 + ["A"]


def test_a_session_that_has_ended_is_resumed_for_answers_to_earlier_steps() -> None:
    assert said_by("ended_session.mjs") == [
        '{"step":1,"body":"a","end":false}',
        '{"step":2,"body":"b","end":true}',
        '{"resume":"token","after":2,"unanswered":[1]}',
        "A B",
    ]


def test_a_page_that_is_loaded_again_goes_on_with_its_session() -> None:
    assert said_by("reloaded_page.mjs") == [
        "ws://nowhere?content_type=text%2Fplain",
        '{"resume":"token","after":0,"unanswered":[]}',
        "token 2",
        '{"step":3,"body":"c","end":false}',
        "C 3",
        "ws://nowhere?sequence=ada",
        "null",
    ]


def test_a_page_that_is_refused_is_told_the_cause_at_once() -> None:
    assert said_by("refused_session.mjs") == ["SessionRefused 403 4403 see cors_allowed_origin true"]


def test_both_clients_send_a_step_again_after_the_same_causes() -> None:
    causes = re.search(r"const PASSING = new Set\(\[(.*?)\]\)", MODULE.read_text(), re.DOTALL)
    assert causes is not None
    assert set(re.findall(r'"(\w+)"', causes[1])) == session_progress._PASSING
