"""What `torchserve-py serve` does beside serving: wait until models are loaded, introduce them, reload what changes."""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

from torchserve_py.apis.realtime.realtime_pipeline import conversing
from torchserve_py.apis.workflows.workflow_endpoints import workflows_of
from torchserve_py.base.settings.addresses import Address, in_url
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.archive.errors import ArchiveError
from torchserve_py.core.archive.file_function import split_function
from torchserve_py.core.serving.errors import ModelError
from torchserve_py.core.serving.serving import RegisterRequest, ServedModel, Serving
from torchserve_py.endpoints.token_authorization import KEY_FILE, TokenType
from torchserve_py.ops.keys.generated_keys import read_key
from torchserve_py.ops.keys.keys_settings import KeysSettings
from torchserve_py.server import Server, Unservable
from torchserve_py.tools.console.console_settings import ConsoleSettings
from torchserve_py.tools.quickstart.introduction import VARIABLE, introduction, typed
from torchserve_py.tools.quickstart.served_path import ServedPath, Stamps
from torchserve_py.tools.quickstart.terminal_log import say
from torchserve_py.tools.quickstart.unloaded_endpoints import UnloadedFiles

_INTERVAL: Final = 0.1
#: How often files are looked at, and how long they must rest after a change before they are read (seconds).
_WATCH_INTERVAL: Final = 0.3
#: The hosts that stand for all addresses of a machine, and how a client on it reaches them.
_ALL_HOSTS: Final = {"0.0.0.0": "127.0.0.1", "::": "localhost"}  # noqa: S104 - nothing is bound
_EVERYWHERE: Final = ", and at all other addresses of this machine"
_NO_MANAGEMENT_KEY: Final = "there is no management key that it would accept: set TS_MANAGEMENT_KEYS or keys_file"


class Attendant:
    """Attends to a server that serves some paths; with ``watch`` a model whose files change is loaded again."""

    def __init__(self, paths: Sequence[ServedPath], settings: Settings, *, watch: bool) -> None:
        self._paths = [path for path in paths if not path.is_workflow]
        self._workflows = [path for path in paths if path.is_workflow]
        self._watch = watch
        self._workers = settings.default_workers_per_model
        self._data = settings.data_folder
        self._has_tokens = not settings.disable_token_authorization
        keys = settings.of(KeysSettings)
        self._was_given_keys = keys.has_keys
        self._has_management_key = not keys.has_keys or bool(keys.management_keys or keys.keys_file)
        self._has_console = settings.of(ConsoleSettings).enable_console
        self._log_format = settings.log_format if settings.log_config is None else "text"
        self._base = ""
        self._unloaded = UnloadedFiles()
        #: The models at each path, by the path's location and their own; absent while one cannot be loaded.
        self._served: dict[str, dict[str, ServedModel]] = {each.spec.location: {} for each in self._paths}
        #: The state of the files of each path when they were loaded, and when they were looked at last, by location.
        self._loaded: dict[str, Stamps] = {}
        self._seen: dict[str, Stamps] = {}

    async def attend(self, server: Server) -> None:
        """Attend until the server stops.

        Raises Unservable: a model cannot be loaded, and no change of its files will be noticed.
        """
        serving = server.serving
        self._unloaded = server.context.shared(UnloadedFiles.of)
        self._base = _url(server.addresses["inference_address"])
        self._loaded = {each.spec.location: await self._stamps(each) for each in self._paths}
        self._seen = self._loaded.copy()
        bar: tqdm[Any] = tqdm(
            total=len(self._paths),
            bar_format="{desc} {elapsed}",
            leave=False,
            disable=not sys.stderr.isatty() or self._log_format == "json",
        )
        with bar:
            for served in self._paths:
                bar.set_description_str(f"Loading {served.path.name}")
                for spec in await asyncio.to_thread(served.specs):
                    await self._wait_for(served, spec.location, serving, bar)
        for served in self._paths:
            for model in self._served[served.spec.location].values():
                self._introduce(served, model, serving)
        for served in self._workflows:
            await self._introduce_workflow(served, server)
        self._say_where(server)
        try:
            while self._watch:
                for served in self._paths:
                    await self._follow(served, serving)
                await asyncio.sleep(_WATCH_INTERVAL)
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # a signal
            self._say("", "Ending, once accepted requests are answered. Ctrl-C again ends at once.")
            raise

    # Loading

    async def _wait_for(self, served: ServedPath, location: str, serving: Serving, bar: "tqdm[Any]") -> None:
        """Wait until a model that the server loads at its start is ready, or has failed."""
        what = _shown(served, location)
        while True:
            versions = (each for model in serving.models() for each in serving.versions(model.name))
            model = next((each for each in versions if each.url == location), None)
            status = None if model is None else serving.status(model)
            failures = [] if status is None else [each.failure for each in status.workers if each.failure]
            if failures or model is None:  # every model has been registered before the addresses were opened
                why = f": {failures[0]}" if failures else "; the line above tells why"
                if not self._watch:
                    raise Unservable(f"{what} cannot be loaded{why}")
                if model is not None:
                    await serving.unload(model.name, model.version)
                text = f"{what} cannot be loaded{why}. It is tried again when its files change."
                self._unloaded.why[location] = text
                self._say(text)
                return
            if status is not None and status.ready:
                self._served[served.spec.location][location] = model
                return
            bar.refresh()
            await asyncio.sleep(_INTERVAL)

    async def _introduce_workflow(self, served: ServedPath, server: Server) -> None:
        """Wait until a workflow is registered, and introduce it. Raises Unservable: it cannot be."""
        registry, location = server.context.shared(workflows_of), served.spec.location
        while (workflow := next((each for each in registry.workflows() if each.url == location), None)) is None:
            if (why := registry.failures.get(location)) is not None:
                raise Unservable(f"{served.path} cannot be loaded: {why}")
            await asyncio.sleep(_INTERVAL)
        if any(each.workflow is workflow for each in conversing(server.serving, registry)):
            told = f"{workflow.name} (workflow)  converses with OpenAI's realtime clients"
            self._say("", told, f"  {self._base}/v1/realtime?model={workflow.name}")
            return
        headers = [] if self._key() is None else ["-H", f"Authorization: Bearer {self._key()}"]
        headers += ["-H", "ts_request_sequence_id: demo"] if workflow.is_stateful else []
        words = [f"{self._base}/wfpredict/{workflow.name}", *headers, "-H", "content-type: text/plain", "-d", "hello"]
        about = "workflow, stateful" if workflow.is_stateful else "workflow"
        told = f"{workflow.name} ({about})  takes what its first node takes; this is a guess"
        self._say("", told, f"  curl {typed(words)}")

    # Changes

    async def _follow(self, served: ServedPath, serving: Serving) -> None:
        """Load a model again if its files have changed, and have rested since the last look."""
        location = served.spec.location
        before, now = self._seen[location], await self._stamps(served)
        self._seen[location] = now
        if now == before and now != self._loaded[location]:
            changed = _changed(served, self._loaded[location], now)
            self._loaded[location] = now
            await self._reload(served, serving, changed)

    async def _stamps(self, served: ServedPath) -> Stamps:
        """Return the state of the files of a path, without states, and models that lie beside or below it."""
        others = frozenset(each.path for each in self._paths if each.path != served.path) | {self._data}
        return await asyncio.to_thread(served.stamps, others)

    async def _reload(self, served: ServedPath, serving: Serving, changed: str) -> None:
        """Load the models of a path again, those that are new, and end those that are gone if nothing fails."""
        locations = [spec.location for spec in await asyncio.to_thread(served.specs)]
        models = self._served[served.spec.location]
        before = models.copy()
        loads = (self._load(served, location, before.get(location), serving, changed) for location in locations)
        if not all(await asyncio.gather(*loads)):
            return
        for location in [each for each in self._unloaded.why if split_function(each)[0] == served.spec.location]:
            self._unloaded.why.pop(location)  # it has had another function
        remaining = {(each.name, each.version) for each in (models[location] for location in locations)}
        for location in before.keys() - set(locations):
            model = models.pop(location)
            if (model.name, model.version) not in remaining:
                await serving.unload(model.name, model.version)
                self._say(f"{model.name} is no longer served: {changed}.")

    async def _load(
        self, served: ServedPath, location: str, before: ServedModel | None, serving: Serving, changed: str
    ) -> bool:
        """Load one model in place of the one that was loaded before; return whether that succeeds."""
        started = time.monotonic()
        try:
            model = await serving.load(RegisterRequest(url=location, initial_workers=self._workers))
            if before is not None and (before.name, before.version) != (model.name, model.version):
                if before.name == model.name:
                    serving.set_default(model.name, model.version)
                await serving.unload(before.name, before.version)
        except (ArchiveError, ModelError) as error:
            is_served = bool(self._served[served.spec.location])
            goes_on = " The previous version is still serving." if is_served else ""
            why = f"cannot be loaded, {changed}: {error}" if served.path.exists() else "is gone"
            what = _shown(served, location)
            if not is_served:
                self._unloaded.why[location] = f"{what} {why}."
            self._say(f"{what} {why}.{goes_on}")
            return False
        self._unloaded.why.pop(location, None)
        self._served[served.spec.location][location] = model
        self._say(f"{model.name} is reloaded in {time.monotonic() - started:.1f} s: {changed}.")
        if before is None or before.name != model.name:
            self._introduce(served, model, serving)
        return True

    # What the user reads

    def _say(self, *lines: str) -> None:
        say(*lines, log_format=self._log_format)

    def _introduce(self, served: ServedPath, model: ServedModel, serving: Serving) -> None:
        folder = served.path if served.path.is_dir() else served.path.parent
        self._say("", *introduction(model, serving.declared(model), folder, self._base, self._key()))

    def _key(self) -> str | None:
        """Return the inference key for the curl of a person; a log gets the name of a variable instead."""
        if not self._has_tokens:
            return None
        is_shown = sys.stdout.isatty() and not self._was_given_keys
        return read_key(TokenType.inference, Path(KEY_FILE)) if is_shown else VARIABLE

    def _where_keys_are(self) -> str:
        """Return the words about the key that requests need."""
        if not self._has_tokens:
            return ""
        if self._was_given_keys:
            return ", with a key that it was given (KEY in the commands above)"
        return f", with the inference key in {Path(KEY_FILE).absolute()} (KEY=$(torchserve-py key) in that folder)"

    def _say_where(self, server: Server) -> None:
        grpc = server.addresses.get("grpc_inference_port")  # the plugin may be absent
        called = "" if grpc is None else f" (gRPC {_url(grpc).partition('//')[2]})"
        watched = " Changes of files are loaded." if self._watch else ""
        pages = [f"Try it in the browser: {self._base}/docs"]
        if self._has_console:
            shut = "" if self._has_management_key else f" ({_NO_MANAGEMENT_KEY})"
            pages.append(f"Console: {_url(server.addresses['management_address'])}/console{shut}")
        self._say("", *pages)
        everywhere = _EVERYWHERE if server.addresses["inference_address"].host in _ALL_HOSTS else ""
        self._say(f"Serving at {self._base}{everywhere}{called}{self._where_keys_are()}.{watched} Ctrl-C ends it.")


def _url(address: Address) -> str:
    """Return the URL of a listener for a client on this machine."""
    if address.is_unix:
        return str(address)
    host = _ALL_HOSTS.get(address.host, address.host)
    return f"{address.scheme}://{in_url(host)}:{address.port}"


def _shown(served: ServedPath, location: str) -> str:
    """Return what a message calls a model: its path, with the function of a Python file that has several."""
    return str(served.path) if location == served.spec.location else location


def _changed(served: ServedPath, before: Stamps, now: Stamps) -> str:
    """Return which of a path's files have changed, in words."""
    folder = served.path if served.path.is_dir() else served.path.parent
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    first = os.path.relpath(names[0], folder)
    if len(names) == 1:
        return f"{first} {'has changed' if names[0] in now else 'is gone'}"
    return f"{first} and {len(names) - 1} more files have changed"
