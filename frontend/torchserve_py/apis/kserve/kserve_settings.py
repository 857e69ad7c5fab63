"""The setting of Vertex AI's path."""

from torchserve_py.base.settings.table import OptionalRoute, SettingsSection, setting


class KServeSettings(SettingsSection):
    """The setting of Vertex AI's path."""

    predict_route: OptionalRoute = setting(
        None, "one more path of `/v1/models/{model}:predict`, for the only model loaded at start-up"
    )
