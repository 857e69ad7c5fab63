"""The setting of traces."""

from torchserve_py.base.settings.table import OptionalName, SettingsSection, setting


class TracingSettings(SettingsSection):
    """The setting of traces."""

    traces: OptionalName = setting(None, "where OpenTelemetry [traces](operations.md#traces) go: `otlp`, or a file")
