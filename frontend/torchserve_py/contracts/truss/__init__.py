"""Truss's HTTP interface: a Truss that is served here answers every request that a Truss's own server answers."""
