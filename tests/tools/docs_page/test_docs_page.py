"""The page `/docs`: the document of what is served, and requests that are sent from it in a browser."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from openapi_spec_validator import validate
from PIL import Image
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from tests.e2e.browser import Browser, chromium
from tests.e2e.running_server import DEADLINE, eventually
from tests.e2e.serve_command import ServeCommand
from tests.endpoints.conftest import Start

MODELS = {
    "shout.py": '''
from ts import serve


@serve(example="good morning")
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()
''',
    "area.py": '''
from math import prod
from typing import Annotated

from pydantic import BaseModel, Field

from ts import serve


class Box(BaseModel):
    width: float = Field(gt=0, description="From left to right")
    height: float


@serve
class Area:
    """Compute an area.

    In the unit that you name.
    """

    def predict(
        self, box: Box, unit: Annotated[str, Field(max_length=3)] = "m2", factors: list[float] | None = None
    ) -> dict[str, float]:
        return {unit: box.width * box.height * prod(factors or ())}
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
    form = area["requestBody"]["content"]["multipart/form-data"]
    assert form["encoding"] == {"factors": {"contentType": "application/json"}}
    count = document["paths"]["/count"]["post"]
    assert "requestBody" not in count
    assert count["parameters"][0]["name"] == "ts_request_sequence_id"


@pytest.mark.parametrize("name", ["shout", "area", "turn"])
def test_the_example_of_each_function_is_answered(command: ServeCommand, document: Any, name: str) -> None:
    content = document["paths"][f"/{name}"]["post"]["requestBody"]["content"]["application/json"]
    url, headers = f"{command.base}/{name}", {"content-type": "application/json"}
    answer = requests.post(url, json.dumps(content["example"]), headers=headers, timeout=DEADLINE)
    assert answer.status_code == 200, answer.text


def test_the_example_of_a_problem_is_what_the_server_returns(command: ServeCommand, document: Any) -> None:
    responses = document["paths"]["/shout"]["post"]["responses"]
    example = responses["422"]["content"]["application/problem+json"]["example"]
    problem = requests.post(f"{command.base}/shout", json={}, timeout=DEADLINE).json()
    assert {**example, "detail": "", "errors": []} == {**problem, "detail": "", "errors": []}


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


AREA, TURN = "#operations-area-area", "#operations-turn-turn"


def input_of(browser: Browser, operation: str, name: str) -> Any:
    """Return the input of the value that is called so."""
    wait_for(browser, f"{operation} .fields")
    labels = browser.find_elements(By.CSS_SELECTOR, f"{operation} .fields label")
    (label,) = (each for each in labels if each.text.removesuffix(" *") == name)
    return browser.find_element(By.ID, label.get_attribute("for") or "")


def write(browser: Browser, operation: str, **values: str) -> None:
    for name, value in values.items():
        found = input_of(browser, operation, name)
        found.clear()
        found.send_keys(value)


def said(browser: Browser, operation: str) -> list[str]:
    """Return what the form says is wrong."""
    found = (each.text for each in browser.find_elements(By.CSS_SELECTOR, f"{operation} .wrong"))
    return [each for each in found if each]


def answered(browser: Browser, operation: str, wanted: str) -> None:
    """Send what the form has, and wait for the answer."""
    wait_for(browser, f"{operation} .execute").click()
    seen = f"{operation} .live-responses-table .highlight-code"
    eventually(lambda: wanted in "".join(wait_for(browser, seen).text.split()), f"the answer has {wanted}", 60)


def choose_form(browser: Browser, operation: str) -> None:
    """Let the body be a multipart form."""
    Select(wait_for(browser, f"{operation} .content-type")).select_by_value("multipart/form-data")
    eventually(lambda: not browser.find_elements(By.CSS_SELECTOR, f"{operation} .as-json"), "the form is shown", 60)


def test_a_body_has_a_field_for_each_value_with_its_limits(browser: Browser, command: ServeCommand) -> None:
    browser.get(f"{command.base}/docs")
    width = input_of(browser, AREA, "width")
    assert [width.get_attribute(name) for name in ("type", "min", "value")] == ["number", "0", "1"]
    assert width.accessible_name == "width *"
    hint = width.get_attribute("aria-describedby").split()[0]
    assert browser.find_element(By.ID, hint).text == "From left to right; more than 0"

    write(browser, AREA, width="-1", unit="acres", factors="2")
    wait_for(browser, f"{AREA} .execute").click()
    assert said(browser, AREA) == [
        "The value must be more than 0.",
        "The value must be at most 3 characters long.",
        "The value must be a list in JSON.",
    ]
    assert browser.switch_to.active_element == width
    assert browser.find_elements(By.CSS_SELECTOR, f"{AREA} .live-responses-table") == []

    write(browser, AREA, width="2", height="5", unit="cm2", factors="[2, 3]")
    assert said(browser, AREA) == []
    answered(browser, AREA, '"cm2":60')
    wait_for(browser, f"{AREA} .reset").click()
    assert [input_of(browser, AREA, name).get_property("value") for name in ("width", "unit")] == ["1", ""]
    assert browser.complaints() == []


def test_the_fields_and_the_box_with_json_follow_each_other(browser: Browser, command: ServeCommand) -> None:
    browser.get(f"{command.base}/docs")
    write(browser, AREA, width="3")
    wait_for(browser, f"{AREA} .as-json input").click()
    box = wait_for(browser, f"{AREA} textarea.body-param__text")
    assert json.loads(box.get_property("value"))["box"]["width"] == 3
    for text, is_whole in (('{"box": {"width": 4, "height": 5}}', True), ('{"box": {"width": 4}, "more": 1}', False)):
        box = wait_for(browser, f"{AREA} textarea.body-param__text")
        box.clear()
        box.send_keys(text)
        wait_for(browser, f"{AREA} .as-json input").click()
        if is_whole:
            assert input_of(browser, AREA, "height").get_property("value") == "5"
            answered(browser, AREA, '"m2":20')
            wait_for(browser, f"{AREA} .as-json input").click()
    assert "no field for some of it" in wait_for(browser, f"{AREA} [role=alert]").text
    assert "more" in wait_for(browser, f"{AREA} textarea.body-param__text").get_property("value")


def test_files_and_lists_are_fields_of_a_form(browser: Browser, command: ServeCommand, tmp_path: Path) -> None:
    file = tmp_path / "wide.png"
    Image.new("RGB", (30, 20), "teal").save(file)
    browser.get(f"{command.base}/docs")

    def turned(width: int, height: int) -> None:
        wait_for(browser, f"{TURN} .execute").click()
        script = (
            "const found = document.querySelector(arguments[0]); return [found?.naturalWidth, found?.naturalHeight]"
        )
        picture = f"{TURN} .live-responses-table img"
        eventually(lambda: browser.execute_script(script, picture) == [width, height], "the picture is shown", 60)

    input_of(browser, TURN, "picture")
    turned(1, 1)  # the example's
    input_of(browser, TURN, "picture").send_keys(str(file))
    turned(20, 30)
    choose_form(browser, TURN)
    turned(1, 1)
    input_of(browser, TURN, "picture").send_keys(str(file))
    write(browser, TURN, degrees="180")
    turned(30, 20)

    choose_form(browser, AREA)
    write(browser, AREA, width="1", height="5", unit="1e5", factors="[2, 3]")
    answered(browser, AREA, '"1e5":30')
    assert browser.complaints() == []


@pytest.mark.parametrize(
    ("scheme", "ground", "rules"),
    [("dark", "rgb(28, 32, 34)", ()), ("light", "rgb(255, 255, 255)", ("color-contrast",))],
)
def test_the_page_is_dark_or_light_as_the_system_is_and_has_no_serious_barrier(
    browser: Browser, command: ServeCommand, scheme: str, ground: str, rules: tuple[str, ...]
) -> None:
    browser.prefer(scheme)
    browser.get(f"{command.base}/docs")
    write(browser, AREA, width="-1")
    wait_for(browser, f"{AREA} .execute").click()
    assert said(browser, AREA) == ["The value must be more than 0."]
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
