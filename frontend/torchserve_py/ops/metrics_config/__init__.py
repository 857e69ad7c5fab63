"""A file that lists the metrics there are."""
