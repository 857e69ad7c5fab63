"""The server's metrics, and how they are exposed."""
