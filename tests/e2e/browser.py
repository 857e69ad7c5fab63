"""Chromium, driven by selenium, for tests of pages: empty profile, no request to anywhere but the test's server."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import axe_core_python
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from tests.programs import need_program

_AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
#: What axe calls the impact of a finding, the least first.
#: How long a script or a page may take (seconds).
_PATIENCE = 300
_IMPACTS = ("minor", "moderate", "serious", "critical")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)


class Browser(webdriver.Chrome):
    """A window, and what tests ask of it."""

    def complaints(self) -> list[str]:
        """Return what the console of the page has got since the last call: errors, and violations of its policy."""
        entries: list[dict[str, Any]] = self.get_log("browser")
        return [each["message"] for each in entries if each["level"] in ("SEVERE", "WARNING")]

    def resize(self, width: int, height: int) -> None:
        """Let the page have this size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Prefer dark or light."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def barriers(self, *, least: str = "minor", rules: tuple[str, ...] = ()) -> list[tuple[str, list[str]]]:
        """Return what axe finds in the page that keeps people out: the rule, and the elements that break it.

        Args:
            least: The impact from which on a finding counts.
            rules: The only rules to look for; all if empty.
        """
        self.execute_script(_AXE)
        script = """
            const [options, done] = arguments;
            axe.run(options).then((all) => done(JSON.stringify(all)));
        """
        options = {"resultTypes": ["violations"], **({"runOnly": [*rules]} if rules else {})}
        results = json.loads(self.execute_async_script(script, options))
        looked = {each["id"]: kind for kind in ("passes", "violations", "incomplete") for each in results[kind]}
        assert looked.keys() >= {*(rules or ["document-title"])}, looked
        counted = _IMPACTS[_IMPACTS.index(least) :]
        violations = [each for each in results["violations"] if each["impact"] in counted]
        return [(each["id"], [node["html"] for node in each["nodes"]]) for each in violations]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser."""
    with tempfile.TemporaryDirectory(prefix="tsbrowser-", ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = need_program("chromium")
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        browser = Browser(options=options, service=Service(need_program("chromedriver")))
        browser.set_script_timeout(_PATIENCE)
        browser.set_page_load_timeout(_PATIENCE)
        try:
            browser.resize(1280, 900)
            yield browser
        finally:
            browser.quit()
