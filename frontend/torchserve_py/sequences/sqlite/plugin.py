"""The store `file`: a database of SQLite's."""

from torchserve_py.plugin_api import Plugin, StoreOffer

_KEYS = ("path", "fsync", "lease", "stateVersion", "maxStateSize", "rememberIds")

PLUGIN = Plugin(name="sqlite", stores={"file": StoreOffer("ts.sequences.sqlite.open_sqlite", _KEYS)})
