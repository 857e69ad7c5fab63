"""What `torchserve-py serve` does beside serving: wait until models are loaded, introduce them, reload what changes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

from torchserve_py.archive.errors import ArchiveError
from torchserve_py.core.errors import ModelError
from torchserve_py.core.serving import RegisterRequest, ServedModel, Serving
from torchserve_py.doors.token_authorization import KEY_FILE
from torchserve_py.first_minute.introduction import introduction
from torchserve_py.first_minute.source import Source, Stamps
from torchserve_py.server import Server, Unservable
from torchserve_py.settings.addresses import Address

_INTERVAL: Final = 0.1
#: How often files are looked at, and how long they must rest after a change before they are read (seconds).
_WATCH_INTERVAL: Final = 0.3


class Attendant:
    """Attends to a server that serves some sources.

    Args:
        sources: What is served.
        workers: How many workers a model begins with.
        watch: Whether a source whose files change is loaded again.
        has_tokens: Whether requests need a token.
        has_console: Whether there is a page for browsers.
    """

    def __init__(
        self, sources: Sequence[Source], workers: int, *, watch: bool, has_tokens: bool, has_console: bool
    ) -> None:
        self._sources = sources
        self._workers = workers
        self._watch = watch
        self._has_tokens = has_tokens
        self._has_console = has_console
        self._base = ""
        #: The model that each source is served as, by location; absent while it cannot be loaded.
        self._served: dict[str, ServedModel] = {}

    async def attend(self, server: Server) -> None:
        """Attend until the server stops.

        Raises:
            Unservable: A model cannot be loaded, and no change of its files will be noticed.
        """
        serving = server.serving
        self._base = _url(server.addresses["inference_address"])
        seen = {each.spec.location: await self._stamps(each) for each in self._sources}
        bar: tqdm[Any] = tqdm(
            total=len(self._sources), bar_format="{desc} {elapsed}", leave=False, disable=not sys.stderr.isatty()
        )
        with bar:
            for source in self._sources:
                bar.set_description_str(f"Loading {source.path.name}")
                await self._wait_for(source, serving, bar)
        for source in self._sources:
            self._introduce(source, serving)
        self._say_where(server)
        try:
            while self._watch:
                for source in self._sources:
                    await self._follow(source, seen, serving)
                await asyncio.sleep(_WATCH_INTERVAL)
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # a signal
            _say("", "Ending, once accepted requests are answered. Ctrl-C again ends at once.")
            raise

    # Loading

    async def _wait_for(self, source: Source, serving: Serving, bar: tqdm[Any]) -> None:
        """Wait until a source that the server loads at its start is ready, or has failed."""
        location = source.spec.location
        while True:
            versions = (each for model in serving.models() for each in serving.versions(model.name))
            model = next((each for each in versions if each.url == location), None)
            status = None if model is None else serving.status(model)
            failures = [] if status is None else [each.failure for each in status.workers if each.failure]
            if failures or model is None:  # every model has been registered before the addresses were opened
                why = f": {failures[0]}" if failures else "; the line above tells why"
                if not self._watch:
                    raise Unservable(f"{source.path} cannot be loaded{why}")
                if model is not None:
                    await serving.unload(model.name, model.version)
                _say(f"{source.path} cannot be loaded{why}. It is tried again when its files change.")
                return
            if status is not None and status.ready:
                self._served[location] = model
                return
            bar.refresh()
            await asyncio.sleep(_INTERVAL)

    # Changes

    async def _follow(self, source: Source, seen: dict[str, Stamps], serving: Serving) -> None:
        """Load a source again if its files have changed and rest."""
        location = source.spec.location
        stamps = await self._stamps(source)
        if stamps == seen[location]:
            return
        while True:
            await asyncio.sleep(_WATCH_INTERVAL)
            latest = await self._stamps(source)
            if latest == stamps:
                break
            stamps = latest
        seen[location] = stamps
        await self._reload(source, serving)

    async def _stamps(self, source: Source) -> Stamps:
        """Return the state of a source's files, without those of models that lie beside or below it."""
        others = frozenset(each.path for each in self._sources if each is not source)
        return await asyncio.to_thread(source.stamps, others)

    async def _reload(self, source: Source, serving: Serving) -> None:
        before = self._served.get(source.spec.location)
        started = time.monotonic()
        try:
            model = await serving.load(RegisterRequest(url=source.spec.location, initial_workers=self._workers))
            if before is not None and (before.name, before.version) != (model.name, model.version):
                if before.name == model.name:
                    serving.set_default(model.name, model.version)
                await serving.unload(before.name, before.version)
        except (ArchiveError, ModelError) as error:
            goes_on = "" if before is None else " The version before it goes on serving."
            _say(f"{source.path} has changed and cannot be loaded: {error}.{goes_on}")
            return
        self._served[source.spec.location] = model
        _say(f"{model.name} is reloaded in {time.monotonic() - started:.1f} s: {source.path.name} has changed.")
        if before is None or before.name != model.name:
            self._introduce(source, serving)

    # What the user reads

    def _introduce(self, source: Source, serving: Serving) -> None:
        model = self._served.get(source.spec.location)
        if model is not None:
            folder = source.path if source.path.is_dir() else source.path.parent
            lines = introduction(model, serving.declared(model), folder, self._base, self._key())
            _say("", *lines)

    def _key(self) -> str | None:
        """Return the inference key for the curl of a person; a log gets the name of a variable instead."""
        if not self._has_tokens:
            return None
        return str(json.loads(Path(KEY_FILE).read_text())["inference"]["key"]) if sys.stdout.isatty() else "$KEY"

    def _say_where(self, server: Server) -> None:
        grpc = server.addresses["grpc_inference_port"]
        keys = f", with the inference key in {Path(KEY_FILE).absolute()}" if self._has_tokens else ""
        watched = " Changes of files are loaded." if self._watch else ""
        if self._has_console:
            _say("", f"In the browser: {_url(server.addresses['management_address'])}/console")
        where = f"{self._base} (gRPC {_url(grpc).partition('//')[2]})"
        _say(f"Serving at {where}{keys}.{watched} Ctrl-C ends it.")


def _url(address: Address) -> str:
    """Return the URL of a listener for a client on this machine."""
    if address.is_unix:
        return str(address)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104 - nothing is bound
    return f"{address.scheme}://{f'[{host}]' if ':' in host else host}:{address.port}"


def _say(*lines: str) -> None:
    for line in lines:
        tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()
