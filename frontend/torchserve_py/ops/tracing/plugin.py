"""OpenTelemetry traces of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import Settings, SettingsSection
    from torchserve_py.core.jobs.job_observer import JobObserver


def _observer(settings: Settings) -> JobObserver | None:
    from torchserve_py.ops.tracing.tracing_settings import TracingSettings

    traces = settings.of(TracingSettings).traces
    if traces is None:
        return None
    from torchserve_py.ops.tracing.job_spans import JobSpans

    return JobSpans(traces)


def _settings() -> type[SettingsSection]:
    from torchserve_py.ops.tracing.tracing_settings import TracingSettings

    return TracingSettings


PLUGIN = Plugin(name="tracing", observer=_observer, settings=_settings)
