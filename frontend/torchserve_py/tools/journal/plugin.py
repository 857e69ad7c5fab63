"""The requests and answers of models as files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
    from torchserve_py.base.settings.table import Settings, SettingsSection
    from torchserve_py.core.jobs.job_observer import JobObserver


def _observer(settings: Settings) -> JobObserver | None:
    from torchserve_py.tools.journal.job_journal import Journals

    return Journals(settings)


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.tools.journal.journal_care import care_for_journals

    return [BackgroundOffer("counting and tidying journals", care_for_journals)]


def _settings() -> type[SettingsSection]:
    from torchserve_py.tools.journal.journal_settings import JournalSettings

    return JournalSettings


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.tools.journal.journal_keys import JournalKeys

    return JournalKeys


PLUGIN = Plugin(
    name="journal",
    observer=_observer,
    background=_background,
    settings=_settings,
    model_config=_model_config,
)
