"""The Python API of TorchServe's model archiver, under its own names, of `torchserve_py.archives.archiver`."""

from model_archiver.model_archiver import ModelArchiver
from model_archiver.model_archiver_config import ModelArchiverConfig
from torchserve_py.version import __version__

__all__ = ["ModelArchiver", "ModelArchiverConfig", "__version__"]
