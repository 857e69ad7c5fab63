"""TorchServe's Python API for its model archiver, with its names; see `torchserve_py.archives.archiver`."""

from model_archiver.model_archiver import ModelArchiver
from model_archiver.model_archiver_config import ModelArchiverConfig
from torchserve_py.version import __version__

__all__ = ["ModelArchiver", "ModelArchiverConfig", "__version__"]
