"""Archives are downloaded, from the URLs and the networks that the operator allows."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(
    name="downloads",
    downloads=dict.fromkeys(("http", "https", "file"), "torchserve_py.archives.downloads.fetch"),
)
