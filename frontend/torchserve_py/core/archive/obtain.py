"""From the `url` of a registration to a model's files: downloaded or found, then opened. Read this module first."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from torchserve_py.base.settings.model_spec import is_url
from torchserve_py.base.url_secrets import without_secrets
from torchserve_py.core.archive.downloads import DownloadPolicy
from torchserve_py.core.archive.errors import ArchiveExists
from torchserve_py.core.archive.locate import locate
from torchserve_py.core.archive.model_files import ModelFiles, open_model

logger = logging.getLogger(__name__)


def obtain(
    url: str,
    *,
    model_store: Path | None,
    temp_dir: Path,
    policy: DownloadPolicy,
    handler: str | None = None,
    has_default_handler: bool = False,
    reuse: bool = False,
) -> ModelFiles:
    """Get the model at `url`: a URL that is allowed, a file or folder of the model store, or a folder by its path.

    Blocks, possibly for long: call it in a thread. `handler` is the one that the registration names, if any;
    `has_default_handler`: whether `default_service_handler` names one for models that name none. With
    `reuse` a file that the model store has under the URL's name already is taken for an earlier download of it, and is
    not removed with the model.
    Raises ArchiveError, Cancelled; then nothing is left behind, in the model store or in `temp_dir`.
    """
    open_found = partial(
        open_model, temp_dir=temp_dir, url=url, handler=handler, has_default_handler=has_default_handler
    )
    if not is_url(url):
        return open_found(locate(url, model_store))
    from torchserve_py.core.archive.fetch import fetch  # its client of HTTP takes long to import

    try:
        archive = fetch(url, model_store, policy)
    except ArchiveExists as error:
        if not reuse or not error.file.is_file():
            raise
        logger.info("%s is not downloaded again: the model store has %s", without_secrets(url), error.file.name)
        return open_found(error.file)
    try:
        return replace(open_found(archive), downloaded=archive)
    except BaseException:
        archive.unlink(missing_ok=True)
        raise
