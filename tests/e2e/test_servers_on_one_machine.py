"""Two servers behind HAProxy on one machine: the commands of docs/scaling.md do what it says."""

import random
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.e2e.documents import blocks
from tests.e2e.running_server import DEADLINE, ROOT, eventually
from tests.e2e.workplace import Workplace
from tests.programs import need_program

PORTS = ("8080", "8081", "8082", "7070", "7071", "8404")


def own_ports() -> dict[str, str]:
    """Return a number of four digits for each port of the recipe: it is free, and so is it after a 1 and after a 2."""
    found: list[str] = []
    # Not the generator that is seeded for tests: those that run side by side would choose the same ports.
    for port in random.SystemRandom().sample(range(2_100, 9_999), 5_000):
        if all(is_free(number) for number in (port, 10_000 + port, 20_000 + port)):
            found.append(str(port))
        if len(found) == len(PORTS):
            break
    return dict(zip(PORTS, found, strict=True))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def has_ended(pid: int) -> bool:
    """Whether a process has ended; where nothing collects the dead of others, it stays a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def end(pid_file: Path) -> None:
    """Kill what a pid file names, with all that it has started, if it is still there."""
    try:
        process = psutil.Process(int(pid_file.read_text()))
        family = [process, *process.children(recursive=True)]
    except (FileNotFoundError, psutil.NoSuchProcess):
        return
    for each in family:
        each.send_signal(signal.SIGKILL)
    psutil.wait_procs(family, DEADLINE)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A folder with a short name: the path of a socket in it must fit into an address."""
    with tempfile.TemporaryDirectory(prefix="two-") as name:
        yield Path(name)


def test_two_servers_share_a_machine_and_go_on_with_each_others_sequences(directory: Path) -> None:
    need_program("haproxy")
    ports = own_ports()

    def localized(text: str) -> str:
        return re.sub("|".join(PORTS), lambda found: ports[found[0]], text)

    recipe = [localized(block.text) for block in blocks(ROOT / "docs" / "scaling.md") if block.language == "sh"]
    start, use, stop = recipe
    place = Workplace(directory)
    place.environment.pop("TS_CONFIG_FILE")
    shutil.copytree(ROOT / "deploy", directory / "deploy")
    config = directory / "deploy" / "haproxy.cfg"
    config.write_text(localized(config.read_text()).replace("maxconn 20000", "maxconn 2000"))  # descriptors may be few
    proxy = directory / "haproxy.pid"
    pid_files = [directory / f"server{number}" / "tmp" / ".model_server.pid" for number in (1, 2)]
    try:
        code, printed = place.run(f"set -e\n{start}")
        assert code == 0, printed
        haproxy = int(proxy.read_text())
        code, printed = place.run(f"set -e\n{use}", strict=True)
        assert code == 0, printed
        assert re.search(r"5Stopping process .*\nTorchServe has stopped\.", printed), printed
        assert printed.endswith("12"), printed
        assert not pid_files[0].exists()
        assert pid_files[1].exists()
        code, printed = place.run(f"set -e\n{stop}")
        assert code == 0, printed
        eventually(lambda: has_ended(haproxy), "HAProxy has ended")
        assert not pid_files[1].exists()
    finally:
        for pid_file in (*pid_files, proxy):
            end(pid_file)
