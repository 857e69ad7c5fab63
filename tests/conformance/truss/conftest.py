"""One server for each file of tests, with the Trusses that the file names in ``TRUSSES``."""

from collections.abc import Iterator

import pytest
from tests.conformance.truss.serving import Serving


@pytest.fixture(scope="module")
def serving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The server with the file's Trusses, all loaded but those that ``LATE`` names."""
    directory = tmp_path_factory.mktemp("trusses")
    with Serving(request.module.TRUSSES, directory, **getattr(request.module, "PROPERTIES", {})) as running:
        running.wait_loaded(*(set(running.folders) - set(getattr(request.module, "LATE", ()))))
        yield running
