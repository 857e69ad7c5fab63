"""Runs one worker on a node of a Ray cluster: an actor that Ray places, and that the worker process dies with.

The actor keeps the model's files on the node, makes the worker's key and certificate, starts the process, and passes on
what the process prints. Requests and answers do not go through Ray: the process connects to the frontend itself.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ts.connection.worker_socket import tls_address
from ts.protocol.messages import FOLDERS_VARIABLE, TOKEN_VARIABLE
from ts.version import __version__

#: Models whose files stay on a node when no worker uses them.
_KEPT_MODELS: Final = 8
#: Bytes that wait here for the server; a worker that prints faster than the server reads waits.
_READ_SIZE: Final = 64 * 1024
_MOST_UNREAD: Final = 32
#: Seconds for which output is read on after the end of the process: a process that it has left behind may hold it open.
_LINGER: Final = 1.0
#: Folders of hosts that are gone are removed when they are older (seconds) than a host takes to lock its own.
_SETTLED: Final = 60.0
_FOLDERS: Final = "ts-worker-"
STDOUT: Final = 1
STDERR: Final = 2


class WorkerHost:
    """One worker process, and what it needs on this node."""

    def __init__(self) -> None:
        _remove_left_behind()
        self._directory = Path(tempfile.mkdtemp(prefix=_FOLDERS))
        self._lock = os.open(self._directory, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._output = asyncio.Queue[tuple[int, bytes]](_MOST_UNREAD)
        self._process: asyncio.subprocess.Process | None = None
        self._in_use: int | None = None  # descriptor of the lock on the model's files

    def certificate_request(self) -> tuple[str, str, bytes]:
        """Make a key; return the node's id, its version of the package and a certificate signing request (PEM)."""
        import ray
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        path = self._directory / "worker.pem"
        path.touch(0o600)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        request = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
        node = str(ray.get_runtime_context().get_node_id())
        return node, __version__, request.public_bytes(serialization.Encoding.PEM)

    async def start(
        self,
        files: tuple[str, Sequence[Any]],
        certificate: bytes,
        authority: bytes,
        address: tuple[str, int],
        environment: Mapping[str, str],
        launcher: Sequence[str],
    ) -> str:
        """Start the worker process in a folder with the model's files; return why that failed, "" if it did not.

        Args:
            files: The SHA-256 digest of an archive (tar) of the model's files, and references to its parts.
            certificate: The worker's (PEM).
            authority: The certificate of who has signed the worker's and the frontend's (PEM).
            address: Host and port of the frontend.
            environment: Variables on top of those that Ray has set.
            launcher: What comes before the arguments of the worker's own command line, such as torchrun's.
        """
        with (self._directory / "worker.pem").open("ab") as own:
            own.write(certificate)
        (self._directory / "authority.pem").write_bytes(authority)
        command = [sys.executable, "-P", "-m", "ts.process.worker", "--socket", tls_address(*address, self._directory)]
        if launcher:
            command = [sys.executable, *launcher, *command, "--rank-from-environment"]
        try:
            model, self._in_use = await _model_folder(*files, self._directory)
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=model,
                env=_variables(environment, model),
                start_new_session=True,
            )
        except (OSError, ValueError, tarfile.TarError) as error:  # not every one survives the way through Ray
            return f"{type(error).__name__}: {error}"
        return ""

    def kill(self) -> None:
        """End the process and those that it has started in its group."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
            os.killpg(self._process.pid, signal.SIGKILL)

    async def run(self) -> int:
        """Pass on what the process prints, and wait for its end; return its exit status."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        output = asyncio.gather(self._pass_on(process.stdout, STDOUT), self._pass_on(process.stderr, STDERR))
        status = await process.wait()
        self.kill()
        await asyncio.wait([output], timeout=_LINGER)
        output.cancel()
        if self._in_use is not None:
            os.close(self._in_use)
        shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(asyncio.QueueFull):  # nobody reads
            self._output.put_nowait((0, b""))
        return status

    async def _pass_on(self, stream: asyncio.StreamReader, number: int) -> None:
        while data := await stream.read(_READ_SIZE):
            await self._output.put((number, data))

    async def output(self) -> list[tuple[int, bytes]]:
        """Wait for output of the process; return pieces, each with its stream. After the last comes stream 0."""
        pieces = [await self._output.get()]
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                pieces.append(self._output.get_nowait())
        return pieces


def _variables(environment: Mapping[str, str], model: Path) -> dict[str, str]:
    """Return the variables of a worker process."""
    paths = [os.environ.get("PYTHONPATH"), str(Path(__file__).parents[3])]
    variables = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(each for each in paths if each)}
    variables[FOLDERS_VARIABLE] = str(model)
    variables.pop(TOKEN_VARIABLE, None)  # the certificate takes its place
    return variables


def _remove_left_behind() -> None:
    """Remove the folders of hosts that were killed: the system has taken away their locks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDERS}*"):
        try:
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _SETTLED:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # another host was faster
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:  # its host lives
            continue
        finally:
            os.close(lock)


async def _model_folder(digest: str, parts: Sequence[Any], scratch: Path) -> tuple[Path, int]:
    """Return the folder with a model's files, and a descriptor that keeps it from being removed while it is open.

    Raises ValueError: the archive is not the one that was named.

    Args:
        digest: Of the archive.
        parts: References to its parts.
        scratch: A folder to unpack it in.
    """
    store = Path(tempfile.gettempdir()) / f"torchserve-py-models-{os.getuid()}"
    store.mkdir(mode=0o700, exist_ok=True)
    if store.stat().st_uid != os.getuid() or store.is_symlink():
        raise PermissionError(f"{store} belongs to somebody else")
    folder = store / digest
    lock = os.open(store / f"{digest}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_SH)
    while not folder.is_dir():
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)  # other workers of the model wait
        if not folder.is_dir():
            await _unpack(digest, parts, folder, scratch)
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_SH)
    os.utime(folder)
    await asyncio.to_thread(_remove_unused, store)
    return folder, lock


async def _unpack(digest: str, parts: Sequence[Any], folder: Path, scratch: Path) -> None:
    found = hashlib.sha256()
    archive, unpacked = scratch / "archive", scratch / "files"
    for part in parts:
        piece: bytes = await part
        found.update(piece)
        await asyncio.to_thread(_append, archive, piece)
    if found.hexdigest() != digest:
        raise ValueError(f"the model's files have the digest {found.hexdigest()}, it should be {digest}")
    unpacked.mkdir()
    await asyncio.to_thread(_extract, archive, unpacked)
    archive.unlink()
    unpacked.rename(folder)


def _append(path: Path, piece: bytes) -> None:
    with path.open("ab") as file:
        file.write(piece)


def _extract(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")


def _remove_unused(store: Path) -> None:
    """Remove the models that were used longest ago and that no worker uses."""
    folders = sorted((each for each in store.iterdir() if each.is_dir()), key=lambda each: -each.stat().st_mtime)
    for folder in folders[_KEPT_MODELS:]:
        with folder.with_name(f"{folder.name}.lock").open("a") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
