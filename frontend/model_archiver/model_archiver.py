"""`ModelArchiver.generate_model_archive(config)`."""

from model_archiver.model_archiver_config import ModelArchiverConfig
from model_archiver.model_packaging import generate_model_archive


class ModelArchiver:
    """Makes model archives."""

    @staticmethod
    def generate_model_archive(config: ModelArchiverConfig) -> None:
        """Write the archive that `config` describes. Raises ModelArchiverError, FileNotFoundError or OSError."""
        generate_model_archive(config)
