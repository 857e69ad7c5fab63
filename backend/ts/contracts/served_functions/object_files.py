"""Files that are models as they are: ``torchserve-py serve model.joblib`` writes a module that loads one with this."""

from pathlib import Path
from typing import Any

from ts.jobs.errors import LoadError
from ts.jobs.processor_share import thread_count
from ts.protocol.misplaced_files import misplaced


def load_model(path: str) -> Any:
    """Return the object in a file, which `ts.serve` takes. Raises LoadError: its library is missing, or it is no model.

    joblib and pickle run code that is in the file.
    """
    if what := misplaced(path):
        raise LoadError(f"{path} {what}.")
    suffix = Path(path).suffix
    try:
        if suffix == ".onnx":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = thread_count()
            return onnxruntime.InferenceSession(path, options)
        if suffix == ".joblib":
            import joblib

            return joblib.load(path)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise LoadError(f"{path} needs the package {package}, which is not installed") from None
    import pickle

    with open(path, "rb") as file:
        return pickle.load(file)  # noqa: S301 - the user has named this file to be served, and was warned
