"""The management API: models are registered, scaled, described and unregistered while the server runs."""
