"""Keys and certificates: key stores, files in PEM, and certificates that are made for a run."""
