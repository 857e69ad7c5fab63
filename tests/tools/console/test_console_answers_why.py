"""The console in a browser: problems with tracebacks, events, the server, a chat, bookmarks, and no barrier (axe)."""

import wave
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from PIL import Image
from selenium.webdriver.common.keys import Keys
from tests.e2e.browser import Browser, chromium
from tests.e2e.console_page import ConsolePage
from tests.e2e.running_server import RunningServer, eventually, model_folder

FAILING = """
def handle(data, context):
    if data and data[0]["body"] == "fail":
        raise ValueError("no such customer")
    return data and ["ok" for row in data]
"""
CHAT = """
import json

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    (row,) = data
    said = row["body"]["messages"][-1]["content"]
    context.set_response_content_type(0, "text/event-stream")
    for word in ["You ", "said ", said]:
        chunk = json.dumps({"choices": [{"delta": {"content": word}}]})
        send_intermediate_predict_response([f"data: {chunk}\\n\\n"], context.request_ids, "ok", 200, context)
    return ["data: [DONE]\\n\\n"]
"""
#: Says what it was sent, and answers with the image and with a sound.
SEEING = """
from collections.abc import Iterator

from ts import serve


@serve(openai=True)
def seeing(messages: list[dict]) -> Iterator[dict | str]:
    parts = messages[-1]["content"]
    yield ", ".join(part.get("text") or part.get("input_audio", {}).get("format") or "image" for part in parts)
    yield {"content": [part for part in parts if part["type"] == "image_url"]}
    for part in parts:
        if part["type"] == "input_audio":
            yield {"audio": part["input_audio"]}
"""
READING = """
from ts import serve


@serve(openai=True)
def reading(messages: list[dict[str, str]]) -> str:
    return messages[-1]["content"].upper()
"""
COUNTING = """
def handle(data, context):
    for index in range(len(data or ())):
        context.state[index] = context.state.get(index, b"") + bytes(1500)
    return data and ["counted" for row in data]
"""
#: Each step adds a word to the log of its sequence, and answers with all of them.
TALLY = """
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.step(context, index) for index in range(len(data))]

    def step(self, context, index):
        word = str(context.body(index))
        context.state[index] = [*context.state.get(index, []), word]
        context.state.append(index, word)
        return " ".join(context.state[index])

    def rebuild(self, states, entries):
        return [[*(state or []), *words] for state, words in zip(states, entries)]
"""
TALLIED = "ann/1 <b>"

STORED = """
sequenceBatching: true
sequenceMaxIdleMSec: 600000
maxNumSequence: 5
handler: {{cache: {{store: file, path: {}}}}}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as window:
        yield window


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    models = {
        "failing": model_folder(folder, "failing", FAILING),
        "chat": model_folder(folder, "chat", CHAT, "openai: true\n"),
        "seeing": model_folder(folder, "seeing", SEEING, "openai: true\n"),
        "reading": model_folder(folder, "reading", READING, "openai: true\n"),
        "counting": model_folder(folder, "counting", COUNTING, STORED.format(folder / "counting.db")),
        "tally": model_folder(folder, "tally", TALLY, STORED.format(f"{folder / 'tally.db'}, checkpointEvery: 0")),
    }
    with RunningServer(models, {"drain_timeout": 0}, flags=("--enable-model-api",)) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def page(browser: Browser, server: RunningServer) -> ConsolePage:
    browser.resize(1280, 900)
    browser.prefer("dark")
    browser.complaints()
    return ConsolePage(browser, server)


def step(page: ConsolePage, word: str, sequence: str = TALLIED) -> str:
    headers = {"Authorization": f"Bearer {page.keys['inference']}", "ts_request_sequence_id": sequence}
    headers["content-type"] = "text/plain"
    answer = requests.post(f"{page.server.inference}/predictions/tally", data=word, headers=headers, timeout=180)
    assert answer.ok, answer.text
    return answer.text


def find_no_barrier(page: ConsolePage, where: object, rules: tuple[str, ...] = ()) -> None:
    """Let axe look at what is shown."""
    assert page.browser.barriers(rules=rules) == [], where


def fail(page: ConsolePage) -> None:
    headers = {"Authorization": f"Bearer {page.keys['inference']}", "content-type": "text/plain"}
    answer = requests.post(f"{page.server.inference}/predictions/failing", data="fail", headers=headers, timeout=180)
    assert answer.status_code == 503


def test_the_last_tracebacks_are_shown_first_with_their_requests(page: ConsolePage) -> None:
    page.open()
    page.see(".models tbody", "failing")
    fail(page)
    page.see(".tracebacks", "failing_1.0 ValueError: no such customer")
    page.press(".tracebacks summary")
    page.see(".tracebacks pre", "raise ValueError")
    page.see(".tracebacks .note", r"Requests: \S+")
    page.see(".tile", r"% of the last minute")
    assert page.browser.complaints() == []


def test_events_are_told(page: ConsolePage) -> None:
    page.open("events")
    page.see(".timeline", r"failing 1\.0 registered")
    page.see(".timeline", r"chat 1\.0 worker \d+ is ready")
    url = f"{page.server.management}/models/failing?min_worker=2&synchronous=true"
    requests.put(url, headers={"Authorization": f"Bearer {page.keys['management']}"}, timeout=180)
    page.see(".timeline", r"failing 1\.0 scaled from 1 to 2 workers")


def test_the_server_shows_its_machine_and_settings(page: ConsolePage) -> None:
    page.open("server")
    page.see(".settings", r"Memory of the machine\s+[\d.]+ GB of")
    page.see("main", "No GPU is known")
    page.write("input[type=search]", "drain_timeout")
    page.see(".configuration tbody", r"drain_timeout\s+0\s+\S+config\.properties:\d+")


def test_a_chat_streams(page: ConsolePage) -> None:
    page.open("models", "chat", "1.0", "chat")
    page.write(".say textarea", "hello")
    page.type(Keys.ENTER)
    page.see(".chat .assistant", "You said hello")
    page.see(".chat .assistant small", "first part after")
    page.press(".say button", "New conversation")
    assert page.text(".chat") == ""
    page.press("[role=tab]", "Live")
    page.see(".chart:not([hidden]) figcaption", "Until the first part of a stream")
    page.see(".chart:not([hidden]) figcaption", "From one part to the next")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an image, a sound, a text, and an image that is too large to be sent."""
    folder = tmp_path_factory.mktemp("files")
    Image.new("RGB", (20, 10), "teal").save(folder / "teal.png")
    with wave.open(str(folder / "tone.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(1600))
    (folder / "words.txt").write_text("words")
    (folder / "large.png").write_bytes(bytes(6_000_000))
    return folder


def attach(page: ConsolePage, *files: Path) -> None:
    page.find(".attachments input[type=file]").send_keys("\n".join(map(str, files)))


def test_images_and_audio_are_sent_and_shown_in_a_chat(page: ConsolePage, files: Path) -> None:
    page.open("models", "seeing", "1.0", "chat")
    attach(page, files / "teal.png", files / "tone.wav")
    page.see(".attached", r"(?s)teal\.png, .*tone\.wav, 1\.64 kB")
    page.see(".attachments [role=status]", r"The request has [\d.]+ kB of 6\.55 MB")
    page.write(".say textarea", "what is this")
    page.type(Keys.ENTER)
    page.see(".chat .assistant", "what is this, image, wav")
    width = "return document.querySelector('.chat .{} img[alt=\"{}\"]')?.naturalWidth"
    for role, label in (("user", "teal.png"), ("assistant", "Image of the answer")):
        eventually(lambda at=(role, label): page.run(width.format(*at)) == 20, f"{role} shows the image", 120)
        page.find(f".chat .{role} audio[controls][aria-label]")
    assert page.text(".attached") == "", "they go with one message"
    assert page.browser.complaints() == []


def test_what_cannot_be_sent_in_a_chat_is_told_before(page: ConsolePage, files: Path) -> None:
    page.open("models", "seeing", "1.0", "chat")
    page.see(".attachments [role=status]", "A request may have 6.55 MB")
    attach(page, files / "words.txt")
    page.see(".attachments [role=status]", "words.txt: it is neither an image nor audio")
    attach(page, files / "large.png")
    page.see(
        ".attachments [role=status]", r"large\.png: with it the request would have 8 MB, and the server takes 6\.55 MB"
    )
    attach(page, files / "teal.png")
    page.press("button[aria-label='Remove teal.png']")
    assert page.text(".attached") == ""
    assert page.browser.complaints() == []


def test_a_model_that_takes_texts_says_so_in_a_chat(page: ConsolePage, files: Path) -> None:
    page.open("models", "reading", "1.0", "chat")
    attach(page, files / "teal.png")
    page.press(".say button", "Send")
    page.see(".chat .assistant", r"400: messages\[0\]\.content\[0\] is of the type 'image_url'; .*'text' only")
    page.write(".say textarea", "hello")
    page.type(Keys.ENTER)
    page.see(".chat .assistant", "HELLO")
    page.browser.complaints()  # the browser tells of each 400


def test_the_slowest_requests_and_the_steps_of_a_sequence_are_shown_with_their_ids(page: ConsolePage) -> None:
    authorization = {"Authorization": f"Bearer {page.keys['inference']}", "content-type": "text/plain"}
    for number in range(3):
        headers = {"ts_request_sequence_id": "ada", "x-request-id": f"step-{number}", **authorization}
        url = f"{page.server.inference}/predictions/counting"
        assert requests.post(url, data="x", headers=headers, timeout=180).status_code == 200
    page.open("models", "counting", "1.0", "live")
    page.see(".finished tbody", r"ms \d.*ms 200 \d+ step-\d")
    assert "first part" not in page.text(".chart figcaption"), "it does not stream"
    page.press("[role=tab]", "Sequences")
    page.press("button.link", "ada")
    page.see(".steps h2", "Steps of ada")
    page.see(".steps tbody", r"(?s)1\.5\d? kB 200 \d+ step-0.*3\.0?\d? kB 200 \d+ step-1.*4\.5\d? kB 200 \d+ step-2")
    assert page.browser.complaints() == []


def test_a_stored_sequence_goes_back_is_forked_and_saved(page: ConsolePage, tmp_path: Path) -> None:
    saved = tmp_path / "copy.sequence"
    behavior = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.browser.execute_cdp_cmd("Browser.setDownloadBehavior", behavior)
    assert [step(page, word) for word in "abc"][-1] == "a b c"
    page.open("models", "tally", "1.0", "sequences")
    page.press("button.link", TALLIED)
    page.see(".bookmarks .note", r"The last step is 3, it can go back to steps 1 to 2\..* Held by this server\.")
    find_no_barrier(page, "bookmarks")

    page.press(".bookmarks button", "Rewind")
    page.see("dialog .field small", "1 to 3")
    assert page.find("dialog input").get_property("value") == "2"
    find_no_barrier(page, "rewind")
    page.write("dialog input", "1")
    page.press("dialog .danger", "Rewind")
    page.see(".bookmarks", r"It goes on after step 1\. Its token is \S+\.")
    page.see(".bookmarks .note", "The last step is 1, it can go back to no earlier step")
    assert not page.find(".bookmarks button").is_enabled()  # there is nothing to go back to
    assert step(page, "x") == "a x"
    page.see(".bookmarks .note", "The last step is 2, it can go back to step 1")  # by itself

    page.press(".bookmarks button", "Fork")
    page.write("dialog input[name=as]", TALLIED)
    page.type(Keys.ENTER)
    page.see("dialog [role=alert]", "There is a sequence .* already")
    page.write("dialog input[name=as]", "copy")
    page.type(Keys.ENTER)
    page.see("#toasts", "Sequence copy goes on after step 2")
    assert step(page, "y", "copy") == "a x y"
    page.press(".bookmarks button.link", "copy")
    page.see(".bookmarks h2", "Bookmarks of copy")
    page.see(".bookmarks .note", "The last step is 3")

    page.press(".bookmarks button", "Export")
    eventually(saved.exists, "the sequence is saved")
    page.write("input[type=search]", "copy")
    page.see(".tools .note", "^1 of 2")
    page.press("tbody button", "End")
    page.press("dialog .danger")
    page.see(".bookmarks .note", r"It is over \(ended\)\. The last step is 3")
    assert not any(each.is_enabled() for each in page.all(".bookmarks .tools button")[:2])
    assert [each for each in page.browser.complaints() if "409" not in each] == []  # the browser tells of the refusal
    headers = {"Authorization": f"Bearer {page.keys['management']}"}
    url = f"{page.server.management}/sequences/tally/copy/import?replace=true"
    assert requests.put(url, data=saved.read_bytes(), headers=headers, timeout=180).ok


@pytest.mark.parametrize(("scheme", "rules"), [("dark", ()), ("light", ("color-contrast",))])
def test_axe_finds_no_barrier(page: ConsolePage, files: Path, scheme: str, rules: tuple[str, ...]) -> None:
    page.browser.prefer(scheme)
    fail(page)
    tabs = [("models", "failing", "1.0", tab) for tab in ("live", "workers", "try", "settings")]
    tabs.append(("models", "counting", "1.0", "sequences"))
    for segments in ((), ("events",), ("server",), ("models", "seeing", "1.0", "chat"), *tabs):
        page.open(*segments)
        page.find("h1")
        if segments[-1:] == ("chat",):
            attach(page, files / "teal.png", files / "tone.wav")
            page.see(".attached", "tone.wav")
            page.press(".say button", "Send")
            page.see(".chat .assistant small", "first part")
            attach(page, files / "teal.png")
            page.see(".attached", "teal.png")
        if segments[-1:] == ("try",):
            page.write(".body textarea", "hello")
            page.press(".try .primary", "Send")
            page.see(".answer .badge", r"\d")
        find_no_barrier(page, segments, rules)
    page.open("models", "failing", "1.0", "workers")
    page.press("tbody a", "Log")
    page.see("h1", "^Worker ")
    find_no_barrier(page, "a log", rules)
    page.open()
    page.press("#register")
    page.find("dialog input")
    find_no_barrier(page, "a dialog", rules)
    page.browser.execute_script("sessionStorage.clear()")
    page.browser.get(page.url)
    page.see("h1", "Management key")
    find_no_barrier(page, "the key", rules)
