"""A request costs no more bytecodes than it did: the one measure of cost that a busy machine cannot hide."""

import json
import platform

import pytest
from benchmarks import bytecodes

#: Timers run more often per request on a slower machine, which makes up to a twentieth.
TOLERANCE = 1.1
#: On a busy machine a turn of the event loop meets fewer requests, and each of these costs more: so often a load is
#: counted, at the most, until it costs no more than it did.
ATTEMPTS = 3


base = json.loads(bytecodes.BASE.read_text())


@pytest.mark.parametrize("load", base["loads"])
def test_a_request_costs_no_more_bytecodes_than_it_did(load: str) -> None:
    if not platform.python_version().startswith(f"{base['python']}."):
        pytest.skip("each version of Python has bytecodes of its own")
    bounds = base["loads"][load]
    for _ in range(ATTEMPTS):
        counted = bytecodes.count(load)
        if all(getattr(counted, place) <= most * TOLERANCE for place, most in bounds.items()):
            break
    for place, most in bounds.items():
        found = getattr(counted, place)
        dearest = "\n".join(f"{each.bytecodes:7.1f} {each.name}" for each in counted.functions[:20])
        assert found <= most * TOLERANCE, (
            f"{load}: {found:,.0f} bytecodes of the {place} per request, where {most:,} were enough; the dearest"
            f" functions:\n{dearest}\n`python -m benchmarks.bytecodes {load} --functions 40` shows more"
        )
        assert found > most / 2, f"{load}: {found:,.0f} of {most:,}: lower it in {bytecodes.BASE.name}"
