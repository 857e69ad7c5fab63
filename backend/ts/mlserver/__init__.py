"""MLServer's model API, for workers that do not have `mlserver` itself installed.

Code written as ``from mlserver import MLModel``, ``from mlserver.types import InferenceRequest`` or ``from
mlserver.codecs import NumpyCodec`` runs unchanged on it: `ts.mlserver.stand_in` makes this package importable under
that name. Modules are called as MLServer calls them, so that imports from deep inside work too. What belongs to
MLServer's server (its listeners, registries and command line) is not here: that is this server's own.
"""

from ts.mlserver.metrics import log, register
from ts.mlserver.model import MLModel
from ts.mlserver.settings import ModelSettings, Settings
from ts.mlserver.version import __version__

__all__ = ["MLModel", "ModelSettings", "Settings", "__version__", "log", "register"]
