"""What handlers' own unit tests import."""
