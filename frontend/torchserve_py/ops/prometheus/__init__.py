"""The metrics of the server, for Prometheus."""
