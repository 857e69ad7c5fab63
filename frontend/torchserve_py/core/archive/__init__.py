"""Models at rest: fetching, reading and verifying archives and model folders."""
