"""`torchserve-py store` opens a store by its path or URL."""

import pytest

from torchserve_py.tools.operator_tools.store_command import main


@pytest.mark.parametrize("place", ["dynamodb://eu/states", "http://127.0.0.1/states"])
def test_a_url_of_no_known_store_is_refused_by_name(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", place]) == 2
    assert f"{place!r} is no path or URL of a store" in capsys.readouterr().err
