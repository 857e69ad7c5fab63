"""What holds for all tests."""

import gc
import importlib
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from unittest import mock

import pytest
import requests.sessions
from google.protobuf import descriptor_pool
from hypothesis import settings

# MLServer and Triton's client have messages of the same names, and protobuf's default pool takes each name once. Here
# tests of both may share a process, so Triton's are put into a pool of their own.
with mock.patch.object(descriptor_pool, "Default", return_value=descriptor_pool.DescriptorPool()):
    importlib.import_module("tritonclient.grpc")

# Endpoints with a fake model registry behind them, workers without processes, and stores, for the tests of every wing.
from tests.endpoints.conftest import serving, start
from tests.sequences.steps.conftest import cache_settings, durable_worker, kind, redis_server
from tests.unit.ts.conftest import frontend, make_worker, model

__all__ = [
    "cache_settings",
    "durable_worker",
    "frontend",
    "kind",
    "make_worker",
    "model",
    "redis_server",
    "serving",
    "start",
]

# A test must not fail because the machine is busy: hypothesis' limit on the time of one example is lifted.
settings.register_profile("torchserve-py", deadline=None)
settings.register_profile("few examples", deadline=None, max_examples=20)
settings.load_profile("torchserve-py")

# Threads send requests while pytest changes a variable, and `requests` would look for proxies in all variables.
requests.sessions.get_environ_proxies = lambda url, no_proxy=None: {}

# In the background of a script these are ignored, and so they would be by every process that a test starts.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


#: What a module imports that starts servers.
STARTS_SERVERS = "from tests.e2e."


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "leave out the modules that start servers, and slow tests, and try properties with a fifth of the examples"
    parser.addoption("--without-servers", action="store_true", help=told)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("without_servers"):
        settings.load_profile("few examples")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what pytest compiles, but nothing of what tests write, and let no collection of garbage look at all tests.

    Python tells a changed file from what it has compiled by whole seconds and the size only.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("without_servers") and collection_path.name.startswith("test_"):
        return STARTS_SERVERS in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("without_servers"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        items[:] = [item for item in items if item not in slow]
        config.hook.pytest_deselected(items=slow)


@pytest.fixture(autouse=True)
def same_signals_blocked() -> Generator[None, None, None]:
    """A launcher that runs in a test blocks signals; processes that later tests start would inherit that."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Processes that share the tests tell each other what was printed, as UTF-8; some tests print what is no text."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
