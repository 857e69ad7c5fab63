"""Truss's HTTP interface: a Truss that is served here answers every request that a Truss's own server answers.

`truss_door` answers requests, with the help of `endpoints` (the paths), `trusses` (which model is meant),
`truss_dialect` (the shapes of errors), `probes`, `truss_document` and `websocket`. Workers make the answers of models.
"""
