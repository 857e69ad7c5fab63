"""Bodies that are forms: `multipart/form-data` and `application/x-www-form-urlencoded`."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(name="forms", forms="ts.contracts.forms.form_bodies")
