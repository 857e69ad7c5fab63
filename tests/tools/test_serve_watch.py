"""`torchserve-py serve --watch`: files change while clients ask; no request and no sequence is lost."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from tests.e2e.running_server import DEADLINE, eventually
from tests.e2e.serve_command import ServeCommand

SHOUT = """\
from ts import serve


@serve
def shout(text: str) -> str:
    return "first " + text
"""
#: Keeps how often a sequence was asked, in a store or in memory.
TALLY = """\
from ts import serve


@serve(store="{store}")
def tally(text: str, state: dict) -> str:
    state["steps"] = state.get("steps", 0) + 1
    return f"first {{state['steps']}}"
"""


class Clients:
    """Clients that ask one after another until told to stop, and note all that is no answer of a version."""

    def __init__(self, command: ServeCommand) -> None:
        self._command = command
        self._stop = threading.Event()
        self.wrong: list[str] = []
        self.answered: dict[str, int] = {}

    def ask(self) -> None:
        """Send requests without state."""
        while not self._stop.is_set():
            answer = self._command.predict("shout", "hello")
            self._note(answer.status_code, answer.text, answer.text in ("first hello", "second hello"))

    def step(self, model: str, sequence: str) -> None:
        """Take the steps of one sequence, each of which must count once."""
        steps = 0
        while not self._stop.is_set():
            steps += 1
            answer = self._command.predict(model, "hello", sequence_id=sequence)
            self._note(answer.status_code, answer.text, answer.text.endswith(f" {steps}"))

    def _note(self, status: int, text: str, is_right: bool) -> None:
        version = text.split(maxsplit=1)[0]
        self.answered[version] = self.answered.get(version, 0) + 1
        if status != 200 or not is_right:
            self.wrong.append(f"{status} {text}")

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask while the context lasts."""
        threads = [threading.Thread(target=self.ask) for _ in range(4)]
        named = [(model, f"s{number}") for model in ("kept", "memory") for number in range(4)]
        threads += [threading.Thread(target=self.step, args=each) for each in named]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self._stop.set()
            for each in threads:
                each.join()


def test_a_change_loses_no_request_and_no_sequence(tmp_path: Path) -> None:
    folder = tmp_path / "kept"  # a model in a folder, two that are files
    folder.mkdir()
    files = {"shout": tmp_path / "shout.py", "kept": folder / "handler.py", "memory": tmp_path / "memory.py"}
    files["shout"].write_text(SHOUT)
    files["kept"].write_text(TALLY.format(store="file"))
    files["memory"].write_text(TALLY.format(store="memory"))
    with ServeCommand(tmp_path, "shout.py", "kept", "memory.py", "--watch") as command:
        command.wait_until_serving()
        assert command.predict("memory", "hello", sequence_id="s").text == "first 1"
        clients = Clients(command)
        with clients.asking():
            for name, file in files.items():
                file.write_text(file.read_text().replace("first", "second"))
                command.wait_for(f"{name} is reloaded")
                command.wait_for(f" s: {file.name} has changed.")
            eventually(
                lambda: clients.answered.get("second", 0) > 100, "the clients get answers of the second versions"
            )
        assert clients.wrong == []
        assert command.predict("shout", "hello").text == "second hello"
        assert command.predict("memory", "hello", sequence_id="s").text == "second 2"


TOTAL = """\
from dataclasses import dataclass

from ts import serve


@dataclass
class Total:
    {field}: int = 0


@serve
def total(text: str, state: Total) -> str:
    state.{field} += 1
    return f"{{state.{field}}}"
"""


def test_a_state_in_memory_that_the_changed_file_cannot_read_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "total.py"
    file.write_text(TOTAL.format(field="steps"))
    with ServeCommand(tmp_path, "total.py", "--watch") as command:
        command.wait_until_serving()
        assert command.predict("total", "hello", sequence_id="s").text == "1"
        file.write_text(TOTAL.format(field="words").replace("from dataclasses", "# renamed\nfrom dataclasses"))
        command.wait_for("total is reloaded")
        lost = command.predict("total", "hello", sequence_id="s")
        assert (lost.status_code, lost.headers["ts-error-cause"]) == (410, "sequence_lost")
        assert command.predict("total", "hello", sequence_id="s", sequence_start="true").text == "1"


def test_an_error_in_a_changed_file_is_told_and_the_version_before_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "shout.py"
    file.write_text(SHOUT)
    with ServeCommand(tmp_path, "shout.py", "--watch") as command:
        command.wait_until_serving()
        changes = (
            ("\n\nmissing()\n", 'shout.py", line 9, in <module>'),
            ("\n\ndef half(:\n", 'shout.py", line 9\n'),
            ("\n\n@serve(batch=2)\ndef other(text):\n    return text\n", "shout.py:9: serve has no argument batch"),
        )
        for number, (broken, told) in enumerate(changes, 1):
            file.write_text(SHOUT + broken)
            command.wait_for(told)
            command.wait_for("The previous version is still serving.", times=number)
            assert command.predict("shout", "hello").text == "first hello"
        file.unlink()
        command.wait_for(f"{file} is gone. The previous version is still serving.")
        file.write_text(SHOUT.replace("first", "third"))
        command.wait_for("shout is reloaded")
        assert command.predict("shout", "hello").text == "third hello"


def test_a_file_that_is_wrong_from_the_start_is_served_once_it_is_right(tmp_path: Path) -> None:
    file = tmp_path / "shout.py"
    file.write_text("missing()\n" + SHOUT)
    with ServeCommand(tmp_path, "shout.py", "--watch") as command:
        command.wait_until_serving()
        assert 'shout.py", line 1' in command.printed()
        assert command.predict("shout", "hello").status_code == 404
        answer = requests.post(f"{command.base}/shout", "hello", timeout=DEADLINE)
        assert (answer.status_code, answer.headers["ts-error-cause"]) == (503, "model_not_loaded")
        assert "NameError: name 'missing' is not defined" in answer.json()["detail"]
        file.write_text(SHOUT)
        (tmp_path / "model-config.yaml").write_text("responseTimeout: 5\n")
        command.wait_for("curl ")
        assert command.predict("shout", "hello").text == "first hello"
