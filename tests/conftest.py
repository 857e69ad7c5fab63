"""What holds for all tests."""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

# A test must not fail because the machine is busy: hypothesis' limit on the time of one example is lifted.
settings.register_profile("torchserve-py", deadline=None)
settings.load_profile("torchserve-py")

# In the background of a script these are ignored, and so they would be by every process that a test starts.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Processes that share the tests tell each other what was printed, as UTF-8; some tests print what is no text."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
