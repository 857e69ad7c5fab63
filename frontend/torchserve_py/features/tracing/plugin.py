"""OpenTelemetry traces of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.jobs.job_observer import JobObserver
    from torchserve_py.settings.table import Settings, SettingsSection


def _observer(settings: Settings) -> JobObserver | None:
    from torchserve_py.features.tracing.tracing_settings import TracingSettings

    traces = settings.of(TracingSettings).traces
    if traces is None:
        return None
    from torchserve_py.features.tracing.job_spans import JobSpans

    return JobSpans(traces)


def _settings() -> type[SettingsSection]:
    from torchserve_py.features.tracing.tracing_settings import TracingSettings

    return TracingSettings


PLUGIN = Plugin(name="tracing", observer=_observer, settings=_settings)
