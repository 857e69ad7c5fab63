"""`generate_model_archive(config=None)`."""

from model_archiver.model_archiver_config import ModelArchiverConfig
from torchserve_py.archives.archiver.pack import pack
from torchserve_py.archives.archiver.torch_model_archiver import parse_options


def generate_model_archive(config: ModelArchiverConfig | None = None) -> None:
    """Write the archive that `config`, or the command line when None, describes.

    Raises ModelArchiverError, FileNotFoundError or OSError.
    """
    pack(parse_options() if config is None else config)
