"""What runtimes and sequences share: a row while it runs, failures, and the device."""
