"""The page `/docs`: the document of what is served, and requests that are sent from it in a browser."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from openapi_spec_validator import validate
from selenium.webdriver.common.by import By
from tests.e2e.browser import Browser, chromium
from tests.e2e.running_server import DEADLINE, eventually
from tests.e2e.serve_command import ServeCommand
from tests.unit.doors.conftest import Start

MODELS = {
    "shout.py": '''
from ts import serve


@serve(example="good morning")
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()
''',
    "area.py": '''
from dataclasses import dataclass

from ts import serve


@dataclass
class Box:
    width: float
    height: float


@serve
class Area:
    """Compute an area.

    In the unit that you name.
    """

    def predict(self, box: Box, unit: str = "m2") -> dict[str, float]:
        return {unit: box.width * box.height}
''',
    "turn.py": """
from PIL import Image

from ts import serve


@serve
def turn(picture: Image.Image, degrees: int = 90) -> Image.Image:
    return picture.rotate(degrees, expand=True)
""",
    "count.py": """
from ts import serve


@serve
def count(state: dict) -> int:
    state["steps"] = state.get("steps", 0) + 1
    return state["steps"]
""",
    "plain.py": """
def handle(data, context):
    return data and [row["body"] for row in data]
""",
}


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeCommand]:
    folder = tmp_path_factory.mktemp("models")
    for name, source in MODELS.items():
        (folder / name).write_text(source)
    with ServeCommand(folder, *MODELS) as running:
        running.wait_until_serving()
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as window:
        yield window


@pytest.fixture(scope="module")
def document(command: ServeCommand) -> Any:
    return requests.get(f"{command.base}/openapi.json", timeout=DEADLINE).json()


def test_the_document_is_valid_and_has_every_model(document: Any) -> None:
    validate(document)
    names = sorted(name.removesuffix(".py") for name in MODELS)
    assert sorted(document["paths"]) == sorted(
        "/predictions/plain" if name == "plain" else f"/{name}" for name in names
    )


def test_a_function_is_described_by_its_signature_and_docstring(document: Any) -> None:
    area = document["paths"]["/area"]["post"]
    assert (area["summary"], area["description"]) == ("Compute an area.", "In the unit that you name.")
    content = area["requestBody"]["content"]["application/json"]
    assert content["schema"] == {"$ref": "#/components/schemas/area.request"}
    assert area["requestBody"]["required"] is True
    request = document["components"]["schemas"]["area.request"]
    assert request["properties"]["box"] == {"$ref": "#/components/schemas/area.Box"}
    assert document["components"]["schemas"]["area.Box"]["required"] == ["width", "height"]
    assert area["responses"]["200"]["content"]["application/json"]["schema"]["additionalProperties"]["type"] == "number"
    turn = document["paths"]["/turn"]["post"]
    assert (
        turn["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]["picture"]["format"] == "binary"
    )
    assert list(turn["responses"]["200"]["content"]) == ["image/png"]
    count = document["paths"]["/count"]["post"]
    assert "requestBody" not in count
    assert count["parameters"][0]["name"] == "ts_request_sequence_id"


@pytest.mark.parametrize("name", ["shout", "area", "turn"])
def test_the_example_of_each_function_is_answered(command: ServeCommand, document: Any, name: str) -> None:
    content = document["paths"][f"/{name}"]["post"]["requestBody"]["content"]["application/json"]
    url, headers = f"{command.base}/{name}", {"content-type": "application/json"}
    answer = requests.post(url, json.dumps(content["example"]), headers=headers, timeout=DEADLINE)
    assert answer.status_code == 200, answer.text


def wait_for(browser: Browser, selector: str) -> Any:
    """Return the first such element, once there is one."""
    return eventually(lambda: browser.find_elements(By.CSS_SELECTOR, selector), selector, 60)[0]


def test_a_request_is_tried_in_the_browser(browser: Browser, command: ServeCommand) -> None:
    browser.complaints()
    browser.get(f"{command.base}/docs")

    wait_for(browser, "#operations-shout-shout .execute").click()
    seen = "#operations-shout-shout .live-responses-table .highlight-code"
    eventually(lambda: "GOOD MORNING" in wait_for(browser, seen).text, "the answer is shown", 120)
    assert browser.complaints() == []
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert {each for each in loaded if not each.startswith((command.base, "blob:", "data:"))} == set()


@pytest.mark.parametrize(
    ("scheme", "ground", "rules"),
    [("dark", "rgb(28, 32, 34)", ()), ("light", "rgb(255, 255, 255)", ("color-contrast",))],
)
def test_the_page_is_dark_or_light_as_the_system_is_and_has_no_serious_barrier(
    browser: Browser, command: ServeCommand, scheme: str, ground: str, rules: tuple[str, ...]
) -> None:
    browser.prefer(scheme)
    browser.get(f"{command.base}/docs")
    wait_for(browser, "#operations-shout-shout .execute")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == ground
    assert browser.barriers(least="serious", rules=rules) == []  # the headings and landmarks are Swagger UI's


def test_models_are_found_by_a_part_of_their_name(browser: Browser, command: ServeCommand) -> None:
    browser.get(f"{command.base}/docs")
    wait_for(browser, "#operations-shout-shout")
    wait_for(browser, ".operation-filter-input").send_keys("are")

    script = "return [...document.querySelectorAll('.opblock')].map((each) => each.id)"
    eventually(
        lambda: browser.execute_script(script) == ["operations-area-area"], "only the model with that name is shown", 60
    )


def test_the_tensors_of_a_function_are_its_metadata_and_their_names_are_checked(command: ServeCommand) -> None:
    url = f"{command.base}/v2/models/shout"
    metadata = requests.get(url, timeout=DEADLINE).json()
    assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [1]}]
    assert metadata["outputs"] == [{"name": "output", "datatype": "BYTES", "shape": [1]}]

    def infer(name: str) -> requests.Response:
        tensor = {"name": name, "shape": [1], "datatype": "BYTES", "data": ["hello"]}
        return requests.post(f"{url}/infer", json={"inputs": [tensor]}, timeout=DEADLINE)

    assert infer("text").json()["outputs"] == [{"name": "output", "datatype": "BYTES", "shape": [1], "data": ["HELLO"]}]
    refused = infer("txt")
    assert (refused.status_code, "there is no input 'txt'; the inputs are: text" in refused.text) == (400, True)
    generated = requests.post(f"{url}/generate", json={"text_input": "hello"}, timeout=DEADLINE).json()
    assert generated["text_output"] == "HELLO"


async def test_the_page_needs_no_key_and_the_document_does(start: Start) -> None:
    serving = await start(disable_token_authorization=False)
    for target, kind in (("/docs/", "text/html"), ("/docs/vendor/swagger-ui-bundle.js", "text/javascript")):
        answer = await serving.request("GET", target)
        assert (answer.status, answer.headers["Content-Type"].startswith(kind)) == (200, True)
        assert "default-src 'none'; script-src 'self';" in answer.headers["Content-Security-Policy"]
    assert (await serving.request("GET", "/docs/../plugin.py")).status == 404
    assert (await serving.request("GET", "/docs/plugin.py")).status == 404
    assert (await serving.request("GET", "/openapi.json")).status in (400, 401)
    key = json.loads(Path(serving.key_file).read_text())["inference"]["key"]
    opened = await serving.request("GET", "/openapi.json", headers={"Authorization": f"Bearer {key}"})
    assert json.loads(opened.body)["security"] == [{"key": []}]
