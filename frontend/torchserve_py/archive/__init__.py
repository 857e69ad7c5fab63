"""Models at rest: reading, writing, fetching and verifying archives and model folders."""
