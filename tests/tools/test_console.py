"""The console in a real browser: every view, and everything that can be done there."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from selenium.webdriver.common.keys import Keys
from tests.e2e.browser import Browser, chromium
from tests.e2e.console_page import ConsolePage
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import RunningServer, eventually, model_folder

#: Does what each request says, in sequences that count their requests.
TALKER = (
    WAITING
    + """
import os

from ts.handler_utils.utils import send_intermediate_predict_response

counts = {}


def handle(data, context):
    if data is None:
        print("ready to talk", flush=True)
        return None
    answers = []
    for index, row in enumerate(data):
        body = row["body"]
        words = body.decode(errors="replace") if isinstance(body, (bytes, bytearray)) else str(body)
        sequence = context.get_request_header(index, "ts_request_sequence_id")
        counts[sequence] = counts.get(sequence, 0) + 1
        if words == "die":
            print("farewell", flush=True)
            os._exit(3)
        if words == "fail":
            raise ValueError("no such customer")
        if words.startswith("stream"):
            for number in range(3):
                send_intermediate_predict_response([f"part {number}, "], context.request_ids, "ok", 200, context)
                if number == 1 and words != "stream":
                    wait_for(words.split()[1])
        if words == "remember":
            context.state[index] = body
            context.metrics.add_counter("Remembered", 2)
        kind = context.get_request_header(index, "content-type")
        answers.append(f"{kind} of {len(body)}: {words[:20]} ({counts[sequence]})")
    return answers
"""
)
PLAIN = "maxRetryTimeoutInSec: 60\n"
STATEFUL = "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\nmaxNumSequence: 50\nmaxSequenceJobQueueSize: 8\n"
STATEFUL += "handler: {cache: {maxMemorySize: 1000000}}\n"
EVIL = "<img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as window:
        yield window


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    talker = model_folder(folder, "talker", TALKER, STATEFUL)
    with RunningServer({"talker": talker}, {"drain_timeout": 0}, flags=("--enable-model-api",)) as running:
        model_folder(running.model_store, "plain", TALKER, PLAIN)
        running.wait_ready()
        yield running


@pytest.fixture
def page(browser: Browser, server: RunningServer) -> Iterator[ConsolePage]:
    """The page; in the end its console has no complaint, and nothing came from another host."""
    browser.resize(1280, 900)
    browser.prefer("dark")
    browser.complaints()
    shown = ConsolePage(browser, server)
    yield shown
    assert browser.complaints() == []
    loaded = shown.run("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert {each for each in loaded if not each.startswith((server.management, "blob:"))} == set()
    assert not shown.run("return window.hacked")


def ask(page: ConsolePage, words: str, sequence: str, **more: str) -> requests.Response:
    """Send a request of a sequence past the page, with more headers."""
    headers = {"Authorization": f"Bearer {page.keys['inference']}", "ts_request_sequence_id": sequence}
    headers |= {"content-type": "text/plain", **more}
    return requests.post(f"{page.server.inference}/predictions/talker", data=words, headers=headers, timeout=180)


def send(page: ConsolePage, words: str) -> None:
    page.write(".body textarea", words)
    page.press(".try .primary", "Send")


def test_the_key_is_asked_for_and_kept_for_the_tab(page: ConsolePage) -> None:
    page.browser.get(page.url)
    page.see("h1", "Management key")
    page.see(".key", "TS_MANAGEMENT_KEYS or keys_file")
    page.write("input[name=key]", "wrong")
    page.type(Keys.ENTER)
    page.see(".key [role=alert]", "did not accept")
    page.write("input[name=key]", page.keys["management"])
    page.type(Keys.ENTER)
    page.see("h1", "^Models$")
    page.browser.refresh()
    page.see(".models tbody", "talker")
    assert page.run("return JSON.stringify(localStorage)") == "{}"
    refused = [each for each in page.browser.complaints() if "400 (Bad Request)" not in each]
    assert refused == []


def test_all_models_are_shown_and_searched(page: ConsolePage) -> None:
    page.open()
    page.see(".models tbody", r"talker 1\.0")
    page.see(".workers", "1 / 1")
    page.see(".tile", r"Workers ready\s+1\s+of 1, (–|[\d.]+ MB)")  # before its first measurement, and after
    assert page.run("return document.querySelectorAll('.plot canvas').length") == 2
    page.write("input[type=search]", "nothing like this")
    page.see(".models .note", "0 of")
    page.press(".segments button", "1 hour")
    assert page.find(".segments [aria-pressed=true]").text == "1 hour"


def test_an_address_without_a_version_shows_the_default_one(page: ConsolePage) -> None:
    page.open("models", "talker")
    page.see("h1", "^talker")
    page.see(".versions", "default")


def test_a_model_is_registered_called_scaled_and_unregistered(page: ConsolePage) -> None:
    page.open()
    page.press("#register")
    page.see("dialog h2", "Register a model")
    assert page.run("return [...document.querySelectorAll('#stored option')].map((each) => each.value)") == ["plain"]
    page.write("input[name=url]", "plain")
    page.write("input[name=model_name]", EVIL)
    page.press("dialog .primary", "Register")
    page.see("h1", f"^{EVIL}$")
    page.see("#toasts", "registered with 1 initial workers")

    page.press("[role=tab]", "Try it")
    send(page, "hello")
    page.see(".answer pre", r"text/plain of 5: hello \(1\)")
    page.see(".answer .badge", "200")

    page.press("[role=tab]", "Workers")
    page.write(".scale .field:nth-child(1) input", "2")
    page.press(".scale .primary", "Scale")
    page.see(".scale .note", "2 of 2 workers are ready")
    assert len(page.all("tbody tr")) == 2

    page.press("[role=tab]", "Settings")
    page.see(".settings", r"batch size\s+1")
    page.press(".heading .danger", "Unregister")
    page.press("dialog .danger", "Unregister")
    page.see("h1", "^Models$")
    eventually(lambda: "onerror" not in page.text(".models tbody"), "the model is gone")


def test_a_mistake_is_told(page: ConsolePage) -> None:
    page.open()
    page.press("#register")
    page.write("input[name=url]", "no-such.mar")
    page.press("dialog .primary", "Register")
    page.see("#toasts", "no-such.mar")
    page.see("dialog h2", "Register a model")
    page.escape()
    for address, complaint in (("#/models/nobody/1.0", "Model not found: nobody"), ("#/models/%zz", "malformed")):
        page.run("location.hash = arguments[0]", address)
        page.see("main .empty", complaint)
    assert [each for each in page.browser.complaints() if "404" not in each and "400" not in each] == []


def test_texts_json_files_and_streams_are_sent(page: ConsolePage, tmp_path: Path) -> None:
    page.open("models", "talker", "1.0", "try")
    gate = Gate(tmp_path)
    send(page, f"stream {gate.path}")
    page.see(".answer .parts", "part 1, $")
    gate.open()
    page.see(".answer pre", "part 0, part 1, part 2, text/plain of ")
    page.press("#body-json")
    page.write(".body textarea", '{"prompt": 5')
    page.press(".try .primary", "Send")
    page.see("#toasts", "JSON")
    page.write(".body textarea", '{"prompt": 5}')
    page.press(".try .primary", "Send")
    page.see(".answer:first-child pre", "application/json of 1: ")
    file = tmp_path / "picture.png"
    file.write_bytes(bytes(range(256)))
    page.press("#body-file")
    page.find(".drop input").send_keys(str(file))
    page.press(".try .primary", "Send")
    page.see(".answer:first-child pre", "image/png of 256")


def test_the_microphone_is_sent(page: ConsolePage) -> None:
    page.open("models", "talker", "1.0", "try")
    page.press("#body-microphone")
    page.press("#record", "Record")
    page.see(".recorder .note", "Recording: [1-9]")
    page.press("#record", "Stop")
    page.see(".recorder .note", "Recorded")
    page.press(".try .primary", "Send")
    page.see(".answer pre", r"audio/wav of \d{5,}: RIFF")


def test_a_session_is_held(page: ConsolePage) -> None:
    page.open("models", "talker", "1.0", "try")
    page.press("#mode-1")
    send(page, "one")
    page.see(".session .note", "Sequence live-")
    page.see(".answer:first-child pre", r"one \(1\)")
    send(page, "stream")
    page.see(".answer:first-child", r"part 0, (.|\n)*stream \(2\)")
    page.press("#body-microphone")
    page.press(".session label:nth-of-type(2)")
    page.press("#record", "Record")
    page.see(".answer:first-child pre", r"of \d{4,}: (.|\n)*\(([3-9]|\d\d+)\)")  # pieces of sound, after two steps
    page.press("#record", "Stop")
    page.press("#body-text")
    page.press("#ends")
    send(page, "last")
    page.see(".session .note", "The sequence has ended")


def test_a_request_is_copied_as_a_command_and_as_a_program_that_do_the_same(page: ConsolePage) -> None:
    page.open("models", "talker", "1.0", "try")
    page.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    page.write(".body textarea", 'it\'s "$HOME" \\ here')
    environment = {"INFERENCE_KEY": page.keys["inference"], "PATH": "/usr/bin:/bin"}
    for button, command in (("#copy-curl", ["bash", "-c"]), ("#copy-python", [sys.executable, "-c"])):
        page.press(button)
        copied = eventually(lambda: page.run("const text = window.copied; window.copied = ''; return text"), "a copy")
        told = subprocess.run(
            [*command, copied], env=environment, capture_output=True, text=True, check=True, timeout=180
        )
        assert told.stdout == 'text/plain of 19: it\'s "$HOME" \\ here (1)'
    page.press("#mode-1")
    page.press("#copy-python")
    copied = eventually(lambda: page.run("return window.copied"), "a copy")
    environment["PYTHONPATH"] = page.server.environment["PYTHONPATH"]
    program = [sys.executable, "-c", copied]
    told = subprocess.run(program, env=environment, capture_output=True, text=True, check=True, timeout=180)
    assert told.stdout.endswith('of 19: it\'s "$HOME" \\ here (1)')  # its content type is that of the session


def test_sequences_are_searched_and_one_is_ended(page: ConsolePage) -> None:
    for name in ("caller-1", "caller-2", EVIL):
        assert ask(page, "hello", name).status_code == 200
    page.open("models", "talker", "1.0", "sequences")
    page.see("tbody", EVIL)
    page.see("tbody", r"caller-1 idle .* s .* s \d+ 0 0")
    page.write("input[type=search]", "caller-2")
    page.see(".note", "^1 of ")
    page.press("tbody button", "End")
    page.press("dialog .danger")
    page.see("#toasts", 'Sequence "caller-2" ends')
    page.see(".note", "^0 of ")
    assert ask(page, "again", "caller-2").text.endswith("(3)") is False


def test_failures_batches_and_a_dead_worker_are_shown(page: ConsolePage) -> None:
    assert ask(page, "fail", "a").status_code == 503
    page.open()
    page.see(".tile", r"Failures per second\s+0\s+[\d.]+ % of the last minute")  # the last second had none
    page.see(".models tbody", r"(?s)talker 1\.0.* ms .* %")
    page.open("models", "talker", "1.0")
    page.see(".bars", r"handler_error\s+1")
    page.see(".bars", r"^1\s+\d+")
    assert ask(page, "die", "b").status_code == 500
    page.see(".bars", r"worker_died\s+1")
    page.open()
    page.see(".problem", r"talker 1\.0 lost a worker in the last minute; worker \d+ ended: exited with code 3")
    page.open("models", "talker", "1.0")
    page.press("[role=tab]", "Workers")
    page.see("tbody", r"ready .* 1 exited with code 3")
    page.press("tbody a", "Log")
    page.see("h1", "^Worker ")
    page.see(".log", r"stdout\s+farewell(.|\n)*server\s+Worker .* exited with code 3(.|\n)*ready to talk")
    assert ask(page, "die", "c").status_code == 500
    page.see(".log", r"farewell(.|\n)*farewell")
    page.write("input[type=search]", "FAREWELL")
    eventually(lambda: set(page.text(".log .text").split("\n")) <= {"farewell", ""}, "other lines are hidden")


def test_deadlines_are_shown_once_there_are_any(page: ConsolePage) -> None:
    page.open("models", "talker", "1.0")
    page.see(".charts", "Batches formed")
    assert "Deadlines" not in page.text(".charts")
    assert ask(page, "in time", "punctual", ts_request_deadline_ms="60000").status_code == 200
    page.see(".charts", r"(?s)Deadlines.*In time\s+1\s+[\d.]+ s left.*Late\s+0\s+–")


def test_states_by_tier_and_numbers_of_the_models_code_are_shown(page: ConsolePage) -> None:
    page.open("models", "talker", "1.0")
    assert ask(page, "remember", "keeper").status_code == 200
    page.see(".charts", r"Remembered\s+–\s+2")

    def shown() -> bool:  # workers tell where states are with a step, once a second
        assert ask(page, "remember", "keeper").status_code == 200
        return re.search(r"host\s+1\s+[1-9]\d* B", page.text(".charts")) is not None

    eventually(shown, "the state is shown in the host's memory")


def test_keys_do_what_the_list_of_keys_says(page: ConsolePage) -> None:
    page.open()
    page.see(".models tbody", "talker")
    page.type("?")
    page.see("dialog", "search models")
    page.escape()
    page.type("/")
    page.type("talk", Keys.TAB, Keys.TAB)
    page.see(".models .note", "^1 of")
    page.find(".models tbody a").send_keys(Keys.ENTER)
    page.see("h1", "^talker$")
    page.type("2")
    assert page.find("[aria-selected=true]").text == "Workers"
    page.find("[aria-selected=true]").send_keys(Keys.ARROW_RIGHT)
    assert page.browser.switch_to.active_element.text == page.find("[aria-selected=true]").text == "Try it"
    page.find("body").send_keys("h")
    page.see("h1", "^Models$")


VIEWS = [("",), *(("models", "talker", "1.0", tab) for tab in ("live", "workers", "try", "sequences", "settings"))]


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_every_view_fits_a_phone_in_dark_and_light(page: ConsolePage, scheme: str) -> None:
    page.browser.prefer(scheme)
    page.browser.resize(360, 740)
    for segments in VIEWS:
        page.open(*segments)
        page.find("main > div")
        assert page.run("return document.documentElement.scrollWidth") <= 360, segments
        assert page.run("return document.documentElement.dataset.theme") == scheme
        heights = page.run("return [...document.querySelectorAll('tbody tr')].map((each) => each.offsetHeight)")
        assert all(height < 150 for height in heights), segments
    page.press("#theme")
    assert page.run("return document.documentElement.dataset.theme") != scheme
    page.run("localStorage.clear()")


def test_a_page_that_lost_its_server_goes_on_with_the_next(page: ConsolePage) -> None:
    page.open()
    key = page.keys["management"]
    page.server.kill_everything()
    page.see("#state", "reconnecting")
    page.server.output.write_text("")  # which says that the server has started
    page.server.start()
    page.server.wait_ready()
    assert page.keys["management"] != key
    page.see("h1", "Management key")
    page.write("input[name=key]", page.keys["management"])
    page.type(Keys.ENTER)
    page.see(".models tbody", "talker")
    lost = ("ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY", "400 (Bad Request)")
    assert [each for each in page.browser.complaints() if not any(why in each for why in lost)] == []
