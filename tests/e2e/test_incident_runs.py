"""A few of the incidents of scripts/incidents: each is detected, and heals by itself once its cause is gone."""

from collections.abc import Callable

import pytest
from tests.incidents.incidents import run
from tests.incidents.of_clients import connections_taken, drain_with_keep_alive_clients
from tests.incidents.of_operators import certificate_is_renewed, log_files_are_rotated
from tests.incidents.scenes import Scene


@pytest.mark.parametrize(
    "incident",
    [connections_taken, drain_with_keep_alive_clients, certificate_is_renewed, log_files_are_rotated],
    ids=lambda each: each.__name__,
)
def test_an_incident_is_noticed_and_heals(incident: Callable[[Scene], None]) -> None:
    scene = run(incident)
    assert (scene.problems, scene.has_passed) == ([], True)
