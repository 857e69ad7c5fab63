"""OpenTelemetry traces of jobs: what workers do of them."""
