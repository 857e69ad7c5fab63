"""OpenTelemetry traces of jobs, from their admission to their last byte."""
