"""How the benchmark of threads compares the default with the other settings."""

import pytest

pytestmark = pytest.mark.torch

pytest.importorskip("torch")

from benchmarks import threads  # noqa: E402 - needs torch


def rounds(*rates: float) -> list[threads.Measured]:
    return [threads.Measured(rate, 2.0) for rate in rates]


def test_the_default_is_compared_with_the_best_other_setting_round_by_round() -> None:
    settings = {
        threads.DEFAULT: rounds(90, 40, 45),
        "1": rounds(100, 50, 50),
        "2": rounds(10, 500, 5),
        threads.OTHER: rounds(900, 900, 900),
    }
    assert threads.against_best(settings) == 0.9
    found = {("MLP", "alone", name): measured for name, measured in settings.items()}
    assert threads.table(found, [*settings]).splitlines()[-1] == (
        "| MLP | alone | 45 (2 ms) | 50 (2 ms) | 10 (2 ms) | 900 (2 ms) | 0.90 |"
    )
