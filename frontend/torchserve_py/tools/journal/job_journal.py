"""Follows the jobs of models that have a journal; those of others cost nothing.

For each job the event loop keeps references to what is there anyway, at most `maxBodyBytes` of it; the rest is done by
the journal's thread.
"""

import hashlib
import importlib
import random
import time
from typing import Final, Self
from urllib.parse import quote

from torchserve_py.base.metrics.model_metrics import EndedJob
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.job_observer import ObservedJob
from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.serving.errors import InvalidModel
from torchserve_py.plugin_api import PluginUnavailable
from torchserve_py.tools.journal.journal_files import JournalFiles
from torchserve_py.tools.journal.journal_keys import JournalConfig, JournalKeys
from torchserve_py.tools.journal.journal_record import (
    KEPT_HEADERS,
    KeptBody,
    KeptJob,
    KeptOutcome,
    KeptRequest,
    kept_body,
)
from torchserve_py.tools.journal.journal_settings import JournalSettings
from torchserve_py.tools.journal.journal_thread import Journal, Redact, journal_thread
from torchserve_py.tools.journal.sealed_lines import KeyUnusable, Sealer, key_in

_FOLDER: Final = "journal"
_HASHES: Final = 2**64
#: The parts of one answer whose times are kept.
_MOST_PARTS: Final = 1000


class Journals:
    """Makes the journals of models.

    Raises PluginUnavailable: the function that redacts cannot be imported, or the key cannot be used.
    """

    in_workers: tuple[str, str] | None = None

    def __init__(self, settings: Settings) -> None:
        own = settings.of(JournalSettings)
        self._settings = own
        self._folder = own.journal_folder or settings.log_location / _FOLDER
        self._redact = None if own.journal_redact is None else _imported(own.journal_redact)
        self._key: bytes | None = None
        if own.journal_key_file is not None:
            try:
                self._key = key_in(own.journal_key_file)
                Sealer(self._key)
            except KeyUnusable as error:
                raise PluginUnavailable(f"journal_key_file: {error}") from error

    def of_model(self, name: str, version: str, keys: PluginKeys) -> "JobJournal | None":
        """Return what writes the journal of a model version, if it has one. Raises InvalidModel."""
        config = keys.of(JournalKeys).journal
        if config is None:
            return None
        folder = self._folder / quote(name, safe="") / quote(version, safe="")
        try:
            files = JournalFiles(
                folder, self._settings.journal_keep_hours, self._settings.journal_keep_bytes, self._key
            )
        except OSError as error:
            raise InvalidModel(f"The journal of the model cannot be written in {folder}: {error.strerror}") from error
        return JobJournal(name, version, config, files, self._redact)

    def begin(self, call: Call, model: str, version: str) -> None:
        """Follow no job: only `of_model` returns what does."""


def _imported(hook: str) -> Redact:
    module, _, name = hook.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the operator's module raises
        where = "it must be importable, so name its folder in PYTHONPATH"
        raise PluginUnavailable(f"journal_redact = {hook}: {type(error).__name__}: {error}; {where}") from error
    if not callable(function):
        raise PluginUnavailable(f"journal_redact = {hook}: {name} is a {type(function).__name__}, not a function")
    redact: Redact = function
    return redact


class JobJournal:
    """Follows the jobs of one model version."""

    in_workers: tuple[str, str] | None = None

    def __init__(
        self, name: str, version: str, config: JournalConfig, files: JournalFiles, redact: Redact | None
    ) -> None:
        headers = KEPT_HEADERS | {each.lower() for each in config.headers or ()}
        self.journal: Final = Journal(name, version, files, headers, redact)
        self._sample = config.sample
        self._limit = config.max_body

    def of_model(self, name: str, version: str, keys: PluginKeys) -> Self:
        """Return this."""
        return self

    def begin(self, call: Call, model: str, version: str) -> ObservedJob | None:
        """Follow a job if it is in the sample."""
        if call.via == "server" or call.only_ask or not self._is_sampled(call):
            return None
        kept = _KeptAnswer(self._limit)
        at, request, headers = time.time(), KeptRequest.of(call), call.headers

        def end(job: EndedJob, last: Part | None) -> None:
            if last is not None:
                kept.add(last)
                last = last._replace(body=b"")
            outcome, body = KeptOutcome.of(job), kept_body(call.body, self._limit)  # which was replaced, perhaps
            journal_thread.put(self.journal, KeptJob(at, request, body, kept.parts, kept.answer, outcome, last))

        return ObservedJob(headers, None, end, kept.add)

    def _is_sampled(self, call: Call) -> bool:
        if self._sample >= 1:
            return True
        if call.sequence is None:
            return random.random() < self._sample  # noqa: S311 - nothing is decided by it that must not be guessed
        digest = hashlib.blake2b(call.sequence.id.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self._sample * _HASHES


class _KeptAnswer:
    """The beginning of an answer, and when its parts came."""

    def __init__(self, limit: int) -> None:
        self.parts: list[tuple[float, int]] = []
        self._limit = limit
        self._began = time.monotonic()
        self._pieces: list[bytes] = []
        self._kept = self._size = 0

    def add(self, part: Part) -> None:
        """Keep a part, as far as there is room."""
        if len(self.parts) < _MOST_PARTS:
            self.parts.append((time.monotonic() - self._began, len(part.body)))
        piece = kept_body(part.body, self._limit - self._kept).content
        self._pieces.append(piece)
        self._kept += len(piece)
        self._size += len(part.body)

    @property
    def answer(self) -> KeptBody:
        """What is kept of all parts."""
        return KeptBody(b"".join(self._pieces), self._size, self._size > self._kept)
