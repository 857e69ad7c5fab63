"""`torchserve-py serve`: from one's own file to an answer, every kind of model, and what a user sees of errors."""

import json
import re
import shlex
import shutil
import socket
import subprocess
from datetime import MAXYEAR, datetime
from pathlib import Path

import psutil
import pytest
import requests
from PIL import Image
from tests.e2e.running_server import DEADLINE, HANDLERS
from tests.e2e.serve_command import COMMAND, ServeCommand, environment, run_curl

from torchserve_py.apis.workflows.torch_workflow_archiver import PackOptions as WorkflowOptions
from torchserve_py.apis.workflows.torch_workflow_archiver import pack as pack_workflow
from torchserve_py.archives.archiver.pack import PackOptions, pack

SHOUT = """\
from ts import serve


@serve
def shout(text: str) -> str:
    return text.upper()
"""
ADD = """\
import ts


@ts.serve(batch_size=4)
def add(a: list[int], b: list[float]) -> list[float]:
    return [x + y for x, y in zip(a, b)]
"""
SIZE = """\
from ts import serve


@serve
def size(image: bytes) -> int:
    return len(image)
"""
CHAT = """\
from collections.abc import Iterator

from ts import serve


@serve(openai=True)
def chat(messages: list[dict[str, str]], temperature: float = 1.0) -> Iterator[str]:
    for word in messages[-1]["content"].split():
        yield word.upper()
"""
EMBED = """\
from ts import serve


@serve(openai=True)
def embed(input: list[str]) -> list[list[float]]:
    return [[float(len(text))] for text in input]
"""
TURN = """\
from PIL import Image

from ts import serve


@serve
def turn(picture: Image.Image, degrees: int = 90) -> str:
    return f"{picture.size} {degrees}"
"""
COUNT = """\
import asyncio
from collections.abc import AsyncIterator

from ts import serve


@serve
class Count:
    async def setup(self, device: str) -> None:
        self.device = device

    async def predict(self, number: int = 3) -> AsyncIterator[dict]:
        for value in range(number):
            await asyncio.sleep(0)
            yield {"value": value, "device": self.device[:3]}
"""
TRUSS = """\
from pydantic import BaseModel


class Question(BaseModel):
    name: str


class Model:
    def predict(self, question: Question) -> dict:
        return {"greeting": f"hello {question.name}"}
"""

SCRIPT = """\
import json


def model_fn(folder):
    return 2


def transform_fn(factor, body, content_type, accept):
    return json.dumps([[number * factor for number in row] for row in json.loads(body)])
"""


#: For a shell that is to find this checkout.
IMPORTED = shlex.quote(environment(Path())["PYTHONPATH"])


def write_models(folder: Path) -> list[str]:
    """Write one model of each kind, and return their paths."""
    for name, text in (("shout.py", SHOUT), ("add.py", ADD), ("count.py", COUNT), ("size.py", SIZE)):
        (folder / name).write_text(text)
    (folder / "weights.pt").write_bytes(b"of another program")
    (folder / "other.pt").write_bytes(b"of another program")
    truss = folder / "greeter"
    (truss / "model").mkdir(parents=True)
    (truss / "config.yaml").write_text("model_name: greeter\n")
    (truss / "model" / "model.py").write_text(TRUSS)
    (folder / "script" / "code").mkdir(parents=True)
    (folder / "script" / "code" / "inference.py").write_text(SCRIPT)
    shutil.copytree(HANDLERS / "sentences", folder / "sentences")
    shutil.rmtree(folder / "sentences" / "sample")
    shutil.copytree(HANDLERS / "echo", folder / "echo")
    handler = str(HANDLERS / "stateful" / "stateful_handler.py")
    config = str(HANDLERS / "stateful" / "model-config.yaml")
    pack(PackOptions(model_name="packed", version="1.0", handler=handler, config_file=config, export_path=str(folder)))
    return ["shout.py", "add.py", "./count.py", "size.py", "greeter", "sentences/", "echo", "packed.mar", "script"]


def test_each_kind_of_model_answers_the_curl_that_is_printed_for_it(tmp_path: Path) -> None:
    with ServeCommand(tmp_path, *write_models(tmp_path)) as command:
        command.wait_until_serving()
        printed = command.printed()
        shout, add, count, size, greeter, sentences, _echo, packed, script = command.curls()
        assert run_curl(shout) == "HELLO"
        assert run_curl(add) == "1.5"
        assert [json.loads(line) for line in run_curl(count).splitlines()][-1] == {"value": 2, "device": "cpu"}
        assert run_curl(size) == "5"
        assert "size  takes bytes (application/octet-stream)" in printed
        assert json.loads(run_curl(greeter)) == {"greeting": "hello hello"}
        assert json.loads(run_curl(sentences))["outputs"][0]["data"]
        assert run_curl(packed.replace("hello", "5")) == "5"
        assert json.loads(run_curl(script)) == [[2, 4]]
        assert "add  takes {a: integer, b: number} (application/json)" in printed
        assert "count (streams)  takes integer (application/json)" in printed
        assert "packed (stateful)" in printed
        assert requests.get(f"{command.base}/ready", timeout=DEADLINE).status_code == 200
        assert requests.get(f"{command.base}/metrics", timeout=DEADLINE).status_code == 200
        pages = re.findall(r"^(?:Try it in the browser|Console): (http://\S+)$", printed, re.MULTILINE)
        assert (pages[0], pages[1].rpartition("/")[2]) == (f"{command.base}/docs", "console")
        assert [requests.get(page, timeout=DEADLINE).status_code for page in pages] == [200, 200]
        wrong = requests.post(f"{command.base}/predictions/add", json={"a": "x"}, timeout=DEADLINE)
        assert wrong.status_code == 400
        assert wrong.json()["message"].startswith("a: Input should be a valid integer")
        assert "b: Field required" in wrong.json()["message"]
        refused = requests.post(f"{command.base}/add", json={"a": "x"}, timeout=DEADLINE)
        assert (refused.status_code, refused.json()["title"]) == (422, "Unprocessable Entity")
        workers = psutil.Process(command.process.pid).children(recursive=True)
        assert command.ended() == 0
        lines = re.findall(r'"(\w+ /\S*) HTTP/1.1" (\d+)', command.printed())
        assert {("POST /shout", "200"), ("POST /add", "422")} <= set(lines)
        assert [line for line, _ in lines if line.startswith(("GET /ready", "GET /metrics", "GET /console"))] == []
        assert [each for each in workers if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []
        assert list(command.temp.glob("torchserve-py-*")) == []
        assert list(command.temp.glob("ts-server-*")) == []


@pytest.mark.parametrize("terminal", [True, False])
def test_the_curl_works_as_printed_where_a_key_is_needed(tmp_path: Path, terminal: bool) -> None:
    (tmp_path / "shout.py").write_text(SHOUT)
    with ServeCommand(tmp_path, "shout.py", "--host", "0.0.0.0", terminal=terminal) as command:
        command.wait_until_serving()
        (curl,) = command.curls()
        assert ("$KEY" in curl) != terminal, "a key is shown to a person, and not to what keeps the output"
        proposed = re.search(r"\((KEY=\$\(.+\)) in that folder\)", command.printed())
        assert proposed is not None
        installed = f'torchserve-py() {{ {shlex.join(COMMAND)} "$@"; }}; export PYTHONPATH={IMPORTED}'
        before = "" if terminal else f"{installed}; cd {shlex.quote(str(tmp_path))}; {proposed[1]}; "
        assert run_curl(before + curl) == "HELLO"


def test_the_curls_of_functions_for_openais_clients_and_with_an_image_work(tmp_path: Path) -> None:
    for name, text in (("chat", CHAT), ("embed", EMBED), ("turn", TURN)):
        (tmp_path / f"{name}.py").write_text(text)
    with ServeCommand(tmp_path, "chat.py", "embed.py", "turn.py") as command:
        printed = command.wait_until_serving().printed()
        chat, embed, turn = command.curls()
        answer = json.loads(run_curl(chat))
        assert (answer["object"], answer["choices"][0]["message"]["content"]) == ("chat.completion", "HELLO")
        assert json.loads(run_curl(embed))["data"][0]["embedding"] == [5.0]
        assert run_curl(turn) == "(1, 1) 90"
        takes = "{picture: image, degrees: integer} (application/json), or a form, such as -F picture=@FILE"
        assert f"turn  takes {takes}\n" in printed
        Image.new("RGB", (3, 2)).save(tmp_path / "cat.png")
        form = f"curl {command.base}/turn -F picture=@{tmp_path}/cat.png -F degrees=45"
        assert run_curl(form) == "(3, 2) 45"


REMEMBER = """\
from ts import serve


@serve
def count(text: str, state: dict) -> int:
    state["words"] = state.get("words", 0) + len(text.split())
    return state["words"]
"""


def test_a_workflow_is_introduced_by_what_clients_do_with_it(tmp_path: Path) -> None:
    for name, text in (("count", REMEMBER), ("chat", CHAT)):
        (tmp_path / f"{name}.py").write_text(text)
        (tmp_path / f"{name}.yaml").write_text(f"dag: {{{name}: []}}")
        pack_workflow(
            WorkflowOptions(
                f"{name}s", str(tmp_path / f"{name}.yaml"), str(tmp_path / f"{name}.py"), export_path=str(tmp_path)
            )
        )
    with ServeCommand(tmp_path, "counts.war", "chats.war") as command:
        printed = command.wait_until_serving().printed()
        (count,) = command.curls()
        assert [run_curl(count), run_curl(count)] == ["1", "2"]
        assert "counts (workflow, stateful)  takes" in printed
        assert "chats (workflow)  converses with OpenAI's realtime clients" in printed
        assert f"  {command.base}/v1/realtime?model=chats\n" in printed


def test_an_address_of_the_network_needs_a_token_and_opens_no_management(tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text(SHOUT)
    with ServeCommand(tmp_path, "shout.py", "--host", "0.0.0.0") as command:
        printed = command.wait_until_serving().printed()
        assert f"Serving at {command.base}, and at all other addresses of this machine" in printed
        assert command.predict("shout", "hello").status_code == 400
        (curl,) = command.curls()
        stored = json.loads((tmp_path / "key_file.json").read_text())["inference"]
        key = stored["key"]
        assert datetime.fromisoformat(stored["expiration time"]).year == MAXYEAR, "the key of a container keeps working"
        typed = subprocess.run(
            [*COMMAND, "key"], cwd=tmp_path, env=environment(command.temp), capture_output=True, text=True, check=True
        )
        assert typed.stdout == f"{key}\n"
        assert run_curl(f"export KEY={key}; {curl}") == "HELLO"
        assert key not in command.printed()
        assert requests.get(f"{command.base}/models", timeout=DEADLINE).status_code == 404


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"TS_INFERENCE_KEYS": "sesame"}, "/console (there is no management key that it would accept: set TS_MANA"),
        ({"TS_INFERENCE_KEYS": "sesame", "TS_MANAGEMENT_KEYS": "boss"}, "/console\n"),
        ({"TS_INFERENCE_KEY": "sesame"}, "TS_INFERENCE_KEY has no effect; did you mean TS_INFERENCE_KEYS?"),
    ],
)
def test_the_terminal_tells_of_keys_that_are_missing(tmp_path: Path, variables: dict[str, str], told: str) -> None:
    (tmp_path / "shout.py").write_text(SHOUT)
    with ServeCommand(tmp_path, "shout.py", variables=variables) as command:
        command.wait_until_serving()
        assert told in command.printed()
        assert "sesame" not in command.printed()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("from ts import serve\n\nmissing()\n\n\n@serve\ndef shout(text):\n    return text\n", 'shout.py", line 3'),
        (
            "from ts import serve\n\n\n@serve(batches=3)\ndef shout(text):\n    return text\n",
            "shout.py:4: serve has no",
        ),
        ("import nowhere_to_be_found\n", "is neither beside the model nor installed for "),
        (
            "x = 1\n",
            "LoadError: shout.py has no model: it has no class, and no function 'handle'. Write @serve (from ts",
        ),
    ],
)
def test_a_model_that_cannot_be_loaded_ends_the_command_and_tells_where(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "shout.py").write_text(text)
    with ServeCommand(tmp_path, "shout.py") as command:
        assert command.process.wait(DEADLINE) == 1
        assert told in command.printed()
        assert f"{tmp_path / 'shout.py'} cannot be loaded" in command.printed()


def test_logs_that_cannot_be_written_are_told_with_what_helps(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in place of the folder")
    (tmp_path / "shout.py").write_text(SHOUT)
    with ServeCommand(tmp_path, "shout.py") as command:
        assert command.process.wait(DEADLINE) == 1
        assert "No logs can be written: " in command.printed()
        assert "set LOG_LOCATION" in command.printed()


def test_wrong_arguments_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "shout.py").write_text(SHOUT)
    (tmp_path / "circle.py").symlink_to("circle.py")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "shout.py").write_text(SHOUT)
        for arguments, told in (
            (["shout.py", "other/shout.py", "--port", "0"], "version 1.0 is already registered"),
            (["none.py"], "none.py: there is no such file or folder"),
            (["circle.py"], "circle.py: there is no such file or folder"),
            (["x" * 300], "xxx: File name too long"),
            (["notes.txt"], "notes.txt is no Python file, folder or archive"),
            (["shout.py", "--port", port], "in use"),
            (["shout.py", "--port", "70000"], "70000 is to be a number from 0 to 65535"),
            (["shout.py", "--workers", "0"], "0 is to be a number from 1 to 1000"),
        ):
            done = subprocess.run(
                [*COMMAND, "serve", *arguments],
                cwd=tmp_path,
                env=environment(tmp_path),
                capture_output=True,
                text=True,
                timeout=DEADLINE,
                check=False,
            )
            assert done.returncode in (1, 2)
            assert told in done.stdout + done.stderr
