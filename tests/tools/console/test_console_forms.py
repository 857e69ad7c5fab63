"""The console's form for a function with ``@serve``, in a real browser: its signature fills it, and its copies work."""

import json
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from tests.e2e.browser import Browser, chromium
from tests.e2e.console_page import ConsolePage
from tests.e2e.running_server import RunningServer, eventually, model_folder

#: What the example of `quoted` has, which a shell and a program must not read as their own.
ODD = {"it's": ['\\ "$HOME" `id` %s', "Grüße 😀\n"], "none": None}
LINES = "it's $HOME\nand 'Grüße'"
#: Functions by name. What they return says what they got.
FUNCTIONS = {
    "area": """
from pydantic import BaseModel, Field

class Box(BaseModel):
    width: float = Field(gt=0)
    height: float = Field(gt=0, le=10)

class Point(BaseModel):
    x: int
    y: int = 0

@serve
def area(box: Box, unit: str = "m2", origin: Point | None = None) -> dict[str, float]:
    return {unit: box.width * box.height}
""",
    "quoted": f"""
@serve(example={ODD!r})
def quoted(value: dict) -> list:
    return [value, "was read"]
""",
    "reading": f"""
@serve(batch_size=4, example={LINES!r})
def reading(text: list[str]) -> list[str]:
    return [each.upper() for each in text]
""",
    "coded": """
from typing import Annotated
from pydantic import Field

@serve
def coded(codes: list[Annotated[str, Field(pattern="^[A-C]{3}$")]]) -> str:
    return " and ".join(codes)
""",
    "story": """
from collections.abc import Iterator

@serve
def story(sentence: str, state: dict) -> Iterator[str]:
    state["told"] = [*state.get("told", []), sentence]
    yield from (f"{each}, " for each in state["told"])
""",
    "picture": """
from PIL import Image

@serve
def picture(image: Image.Image) -> list[int]:
    return list(image.size)
""",
    "sound": """
from ts.utils.sound import Audio

@serve
def sound(sound: Audio) -> str:
    return f"{len(sound.samples)} at {sound.rate} Hz"
""",
    "raw": """
@serve
def raw(data: bytes) -> str:
    return f"{len(data)} bytes"
""",
}
#: A Truss whose predict has a type, and a model of MLServer's with two inputs.
SCORING = """
from pydantic import BaseModel, Field

class Applicant(BaseModel):
    age: int = Field(ge=18)
    city: str

class Model:
    def predict(self, model_input: Applicant) -> dict:
        return {"score": model_input.age, "of": model_input.city}
"""
ADDING = """
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

class Adding(MLModel):
    async def predict(self, payload):
        left, right = (self.decode(each, default_codec=NumpyCodec) for each in payload.inputs)
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("sum", left + right)])
"""
INPUTS = [{"name": "left", "datatype": "FP32", "shape": [-1, 2]}, {"name": "right", "datatype": "INT64", "shape": [1]}]


def scoring(folder: Path) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "config.yaml").write_text("model_name: scoring\n")
    (folder / "model" / "model.py").write_text(SCORING)
    return folder


def adding(folder: Path) -> Path:
    folder.mkdir()
    settings = {"implementation": "model.Adding", "name": "adding", "parameters": {"version": "1.0"}, "inputs": INPUTS}
    (folder / "model-settings.json").write_text(json.dumps(settings))
    (folder / "model.py").write_text(ADDING)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    sources = {name: f"from ts import serve\n{source}" for name, source in FUNCTIONS.items()}
    models = {name: model_folder(folder, name, source) for name, source in sources.items()}
    models |= {"scoring": scoring(folder / "scoring"), "adding": adding(folder / "adding")}
    with RunningServer(models, {"drain_timeout": 0}) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as window:
        yield window


@pytest.fixture
def page(browser: Browser, server: RunningServer) -> ConsolePage:
    permissions = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": server.management}
    browser.execute_cdp_cmd("Browser.grantPermissions", permissions)
    return ConsolePage(browser, server)


def body(page: ConsolePage) -> str:
    """Return the text that is to be sent."""
    return str(page.find(".body textarea").get_property("value"))


def sent(page: ConsolePage) -> str:
    """Send what the form has, and return the text of the answer, which is a success."""
    page.press(".try .primary", "Send")
    page.see(".answer:first-child .badge.good", "200")
    return page.text(".answer:first-child pre")


def copied(page: ConsolePage, button: str) -> str:
    """Press a button that copies, and return what the clipboard has then."""
    clear = "navigator.clipboard.writeText('').then(arguments[0])"
    page.browser.execute_async_script(clear)
    page.press(button)
    read = "navigator.clipboard.readText().then(arguments[0])"
    return str(eventually(lambda: page.browser.execute_async_script(read), "a copy is in the clipboard", 30))


def answers_to_copies(page: ConsolePage, folder: Path) -> tuple[str, str]:
    """Return what the copied command prints in a folder, and what the copied program does."""
    return tuple(  # type: ignore[return-value]
        subprocess.run(
            [*start, copied(page, button)], cwd=folder, capture_output=True, text=True, check=True, timeout=180
        ).stdout
        for button, start in (("#copy-curl", ["bash", "-c"]), ("#copy-python", [sys.executable, "-c"]))
    )


@pytest.mark.parametrize(
    ("name", "example", "answer"),
    [("area", {"box": {"width": 1, "height": 5}}, {"m2": 5}), ("quoted", ODD, [ODD, "was read"])],
)
def test_json_of_the_signature(page: ConsolePage, tmp_path: Path, name: str, example: object, answer: object) -> None:
    page.open_without_key("models", name, "1.0", "try")
    page.press("#body-json")
    assert json.loads(body(page)) == example
    assert json.loads(sent(page)) == answer
    for told in answers_to_copies(page, tmp_path):
        assert json.loads(told) == answer


def labels(page: ConsolePage) -> list[str]:
    """Return what the fields of the form are called."""
    return [each.text for each in page.all(".fields .field > label")]


def wrong(page: ConsolePage) -> list[str]:
    """Return what the form says is wrong, by field."""
    return [each.text for each in page.all(".fields .wrong") if each.text]


def test_a_form_has_a_field_for_each_value_with_its_limits(page: ConsolePage, tmp_path: Path) -> None:
    page.open_without_key("models", "area", "1.0", "try")
    assert labels(page) == ["width *", "height *", "unit", "x *", "y"]
    page.see(".fields", "at most 10; more than 0")
    page.see(".fields", "a whole number; 0 if it is empty")
    page.see(".fields", '"m2" if it is empty')
    width, height, _, y = page.all(".fields input")
    assert [height.get_attribute(name) for name in ("min", "max", "step", "required")] == ["0", "10", "any", "true"]
    height.clear()
    height.send_keys("10.5")
    assert wrong(page) == []
    width.clear()
    assert wrong(page) == ["A value is required.", "The value must be at most 10."]  # the fields have been left
    y.send_keys("1.5")
    page.press(".try .primary", "Send")
    assert wrong(page) == [
        "A value is required.",
        "The value must be at most 10.",
        "A value is required.",  # of x, since there is an origin
        "The value must be a whole number.",
    ]
    assert page.browser.switch_to.active_element == width
    assert height.get_attribute("aria-invalid") == "true"
    assert page.all(".answer") == []
    page.press("#copy-curl")
    page.see(".toast.bad", "A value in the form is wrong.")
    y.clear()  # without an origin nothing of it is required
    for field, value in ((width, "2"), (height, "3")):
        field.clear()
        field.send_keys(value)
    page.find(".fields textarea").send_keys("cm2")
    assert wrong(page) == []
    assert json.loads(sent(page)) == {"cm2": 6}
    for told in answers_to_copies(page, tmp_path):
        assert json.loads(told) == {"cm2": 6}
    page.press("#body-json")
    assert json.loads(body(page)) == {"box": {"width": 2, "height": 3}, "unit": "cm2"}
    page.write(".body textarea", '{"box": {"width": 4, "height": 5}}')
    page.press("#body-form")
    assert json.loads(sent(page)) == {"m2": 20}
    page.press("#body-json")
    page.write(".body textarea", '{"box": {"width": 4, "height": 5}, "more": 1}')
    page.press("#body-form")
    page.see(".toast.bad", "no field for some")


def test_the_schema_of_a_truss(page: ConsolePage, tmp_path: Path) -> None:
    page.open_without_key("models", "scoring", "1.0", "try")
    assert labels(page) == ["age *", "city"]
    page.press("#body-json")
    assert json.loads(body(page)) == {"age": 18, "city": "hello"}
    assert json.loads(sent(page)) == {"score": 18, "of": "hello"}
    for told in answers_to_copies(page, tmp_path):
        assert json.loads(told) == {"score": 18, "of": "hello"}


def test_the_inputs_of_a_model_of_mlserver(page: ConsolePage, tmp_path: Path) -> None:
    page.open_without_key("models", "adding", "1.0", "try")
    assert [each["name"] for each in json.loads(body(page))["inputs"]] == ["left", "right"]
    for told in (sent(page), *answers_to_copies(page, tmp_path)):
        assert json.loads(told)["outputs"][0]["data"] == [1.5, 1.5]


def test_a_text(page: ConsolePage, tmp_path: Path) -> None:
    page.open_without_key("models", "reading", "1.0", "try")
    assert body(page) == LINES
    assert sent(page) == LINES.upper()
    assert answers_to_copies(page, tmp_path) == (LINES.upper(), LINES.upper())


def test_json_without_an_example(page: ConsolePage, tmp_path: Path) -> None:
    page.open_without_key("models", "coded", "1.0", "try")
    page.see(".segments [aria-pressed=true]", "JSON")
    page.write(".body textarea", '["ABC", "CAB"]')
    assert sent(page) == "ABC and CAB"
    assert answers_to_copies(page, tmp_path) == ("ABC and CAB", "ABC and CAB")


def test_a_step_of_a_sequence(page: ConsolePage, tmp_path: Path) -> None:
    page.open_without_key("models", "story", "1.0", "try")
    page.press(".try summary")
    page.write("input[placeholder=none]", "it's ada")
    assert sent(page) == "hello, "
    assert answers_to_copies(page, tmp_path) == ("hello, hello, ", "hello, hello, hello, ")


@pytest.mark.parametrize(("name", "answer"), [("picture", "[\n  30,\n  20\n]"), ("raw", "{size} bytes")])
def test_a_file(page: ConsolePage, tmp_path: Path, name: str, answer: str) -> None:
    file = tmp_path / "it's a picture.png"
    Image.new("RGB", (30, 20), "teal").save(file)
    page.open_without_key("models", name, "1.0", "try")
    page.find(".drop input").send_keys(str(file))
    wanted = answer.format(size=file.stat().st_size)
    assert sent(page) == wanted
    assert answers_to_copies(page, tmp_path) == (wanted, wanted)


def test_a_recording(page: ConsolePage, tmp_path: Path) -> None:
    page.open_without_key("models", "sound", "1.0", "try")
    page.press("#record", "Record")
    page.see(".recorder .note", "Recording: [1-9]")
    page.press("#record", "Stop")
    answer = sent(page)
    downloads = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.browser.execute_cdp_cmd("Browser.setDownloadBehavior", downloads)
    page.press(".recorder a", "Save")
    file = tmp_path / "recording.wav"  # the name that the copied command has
    eventually(file.exists, "the recording is saved", 120)
    with wave.open(str(file)) as recording:
        assert answer == f"{recording.getnframes()} at {recording.getframerate()} Hz"
    assert answers_to_copies(page, tmp_path) == (answer, answer)


def test_a_browser_without_a_clipboard_shows_the_command(page: ConsolePage) -> None:
    page.open_without_key("models", "reading", "1.0", "try")
    command = copied(page, "#copy-curl")
    page.run("Object.defineProperty(navigator, 'clipboard', {value: undefined})")  # as over http from elsewhere
    page.press("#copy-curl")
    page.see("dialog h2", "Copy this")
    shown = page.find("dialog textarea")
    assert shown.get_property("value") == command
    assert page.run("return getSelection().toString()") == command
    page.press("dialog button", "Close")
    eventually(lambda: not page.all("dialog"), "the dialog is closed", 120)
