"""Truss's HTTP interface: a Truss that is served here answers every request that a Truss's own server answers.

`door` answers requests, with the help of `endpoints` (the paths), `trusses` (which model is meant), `dialect` (the
shapes of errors), `probes`, `openapi` and `websocket`. The answers of models are made in their worker.
"""
