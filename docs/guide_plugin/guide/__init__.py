"""Guides: what a model's author tells those who call it."""

from torchserve_py.plugin_api import EndpointsOffer, Plugin, StoreOffer


def _endpoints():
    from guide.endpoint import GuideEndpoints  # when the server starts, not for each command

    return [EndpointsOffer("inference_address", GuideEndpoints)]


def _model_config():
    from guide.endpoint import GuideKeys

    return GuideKeys


STORES = {"folder": StoreOffer("guide.folder_store", keys=("path",))}
PLUGIN = Plugin(name="guide", endpoints=_endpoints, model_config=_model_config, stores=STORES)
