"""The host is measured: processors, memory, disk, GPUs, and the memory of each worker."""

from collections.abc import Iterable

from torchserve_py.plugin_api import BackgroundOffer, Plugin


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.features.system_metrics.system import measure

    return [BackgroundOffer("measuring the system", measure)]


PLUGIN = Plugin(name="system_metrics", background=_background)
