"""What operators need: keys, TLS, logs, metrics and traces."""
