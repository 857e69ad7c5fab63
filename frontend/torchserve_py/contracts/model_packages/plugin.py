"""The packages that a model brings are installed for its workers."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(name="model_packages", packages="torchserve_py.contracts.model_packages.installation")
