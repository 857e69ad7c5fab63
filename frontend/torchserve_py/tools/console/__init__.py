"""The console: a page of the management listener that shows what the server does (``docs/dashboards.md#console``)."""
