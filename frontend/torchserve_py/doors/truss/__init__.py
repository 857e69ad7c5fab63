"""Truss's HTTP interface: what a client of a Truss's own server can say, it can say to a Truss that is served here.

`door` answers requests, with the help of `targets` (what a path asks for), `trusses` (which model is meant), `answers`
(the shapes of errors), `calls`, `probes`, `openapi` and `websocket`. The answers of models are made in their worker.
"""
