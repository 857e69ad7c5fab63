"""Models may be archives, which are unpacked; without this they are folders and Python files."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(name="archives", archives="torchserve_py.archives.unpacking.unpack")
