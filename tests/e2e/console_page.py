"""The console as a visitor sees it: what tests press, write and read there."""

import json
import re
from typing import Any
from urllib.parse import quote

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from tests.e2e.browser import Browser
from tests.e2e.running_server import RunningServer, eventually


class ConsolePage:
    """The console of a server, in a browser."""

    def __init__(self, browser: Browser, server: RunningServer) -> None:
        self.browser = browser
        self.server = server
        self.url = f"{server.management}/console/"

    @property
    def keys(self) -> dict[str, str]:
        """The keys that the server has written down, by the API that each opens."""
        written = json.loads((self.server.directory / "key_file.json").read_text())
        return {name: each["key"] for name, each in written.items()}

    def open(self, *segments: str) -> None:
        """Open a view from anew, with the key."""
        script = f"sessionStorage.setItem('torchserve-py.key', {json.dumps(self.keys['management'])})"
        self.browser.get("about:blank")
        added = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        self.open_without_key(*segments)
        self.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    def open_without_key(self, *segments: str) -> None:
        """Open a view."""
        self.browser.get(f"{self.url}#/{'/'.join(quote(each, safe='') for each in segments)}")
        if segments[:1] != ("logs",):
            self.wait_live()

    def wait_live(self) -> None:
        """Wait until the view gets events."""
        self.see("#state", "live")

    def find(self, selector: str) -> WebElement:
        """Return the first element, once there is one."""
        return eventually(lambda: next(iter(self.all(selector)), None), f"there is {selector}", 120)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Return the text of the elements, joined; empty while they change."""
        try:
            return "\n".join(each.text for each in self.all(selector))
        except StaleElementReferenceException:
            return ""

    def see(self, selector: str, pattern: str) -> str:
        """Wait until a pattern is found in the text of the elements; return what it matches."""
        try:
            found = eventually(lambda: re.search(pattern, self.text(selector)), pattern, 120)
        except AssertionError:
            told = f"{self.text('main')}\n{self.server.story()[-3000:]}"
            raise AssertionError(f"{selector} does not show {pattern!r}:\n{told}") from None
        return found[0]

    def press(self, selector: str, label: str = "") -> None:
        """Press the button or link that is called so, once it can be pressed."""
        buttons = lambda: [each for each in self.all(selector) if label in each.text and each.is_enabled()]  # noqa: E731
        eventually(buttons, f"{selector} {label!r} can be pressed", 30)[0].click()

    def write(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        element = self.find(selector)
        element.clear()
        element.send_keys(text)

    def type(self, *keys: str) -> None:
        """Type where the focus is."""
        active = self.browser.switch_to.active_element
        active.send_keys(*keys)

    def escape(self) -> None:
        self.type(Keys.ESCAPE)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, and return what it returns."""
        return self.browser.execute_script(script, *arguments)
