"""How the MLServer contract is run: a class with ``predict`` or ``predict_stream``, many requests at once.

`load` is where it begins, `runtime` runs the jobs.
"""
