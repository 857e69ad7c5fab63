"""The settings of Ray."""

from torchserve_py.base.settings.table import Name, OptionalName, SettingsSection, setting


class RaySettings(SettingsSection):
    """The settings of Ray."""

    ray_address: Name = setting("auto", "the Ray cluster; `auto`: the one that this machine belongs to")
    ray_worker_host: OptionalName = setting(
        None, "an address of this machine that Ray's nodes reach; workers connect to it", "Ray's"
    )
