"""The settings of Ray."""

from torchserve_py.base.settings.table import Name, OptionalName, SettingsSection, setting


class RaySettings(SettingsSection):
    """The settings of Ray."""

    ray_address: Name = setting("auto", "the Ray cluster; `auto`: this machine's")
    ray_worker_host: OptionalName = setting(None, "address of this machine at which Ray's nodes reach it", "Ray's")
