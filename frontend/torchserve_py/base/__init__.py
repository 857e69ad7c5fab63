"""What every wing stands on: settings, metrics, logs, and small tools."""
