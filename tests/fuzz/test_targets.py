"""Every target takes its seeds, what fuzzing has found before, and arbitrary bytes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fuzz.targets import TARGETS, remove_workplace

FINDINGS = sorted((Path(__file__).parent / "findings").glob("*/*"))


@pytest.fixture(scope="module", autouse=True)
def _workplace() -> Iterator[None]:
    yield
    remove_workplace()


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_pass_whole_and_cut_off_anywhere(name: str) -> None:
    target, seeds = TARGETS[name]
    for seed in seeds:
        target(seed)
        for end in range(0, len(seed), max(1, len(seed) // 100)):
            target(seed[:end])


@pytest.mark.parametrize("finding", FINDINGS, ids=[f"{each.parent.name}-{each.name}" for each in FINDINGS])
def test_what_was_found_stays_mended(finding: Path) -> None:
    target, _ = TARGETS[finding.parent.name]
    target(finding.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_arbitrary_bytes_and_damaged_seeds_pass(name: str, data: st.DataObject) -> None:
    target, seeds = TARGETS[name]
    content = bytearray(data.draw(st.one_of(st.sampled_from(seeds), st.binary(max_size=300))))
    for _ in range(data.draw(st.integers(0, 4))):
        position = data.draw(st.integers(0, len(content)))
        content[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    target(bytes(content))
