"""Models at rest: archives, how they are made, fetched and unpacked."""
