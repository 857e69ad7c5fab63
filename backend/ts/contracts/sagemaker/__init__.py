"""How SageMaker's contract is run: a script ``inference.py`` with ``model_fn`` and others.

`load_sagemaker` is where it begins, `script` finds the functions, `script_handler` calls them.
"""
