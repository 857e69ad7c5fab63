"""How a Truss is run: a folder with ``config.yaml`` and a model class with preprocess, predict and postprocess.

`load` builds the model, `runtime` is what the worker's event loop drives, `call` is the way of one request.
"""
