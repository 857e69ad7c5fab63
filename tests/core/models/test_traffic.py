"""Which version's share a request falls into."""

from collections import Counter

import pytest

from torchserve_py.core.jobs.call import VERSION_HEADER, Call, SequenceRequest
from torchserve_py.core.models.traffic import Traffic
from torchserve_py.core.serving.weights import weights_without
from torchserve_py.versions.traffic.stickiness import user_of
from ts.protocol.request_names import header_among

WEIGHTS = {"1": 80, "2": 15, "3": 5}


def plain(*headers: tuple[object, object]) -> Call:
    return Call(list(headers), b"", by_default=True)


def step(sequence: str) -> Call:
    return Call([], b"", by_default=True, sequence=SequenceRequest(sequence, True, False, ()))


def test_requests_are_shared_by_the_weights() -> None:
    traffic = Traffic("m", WEIGHTS)
    for found in (
        Counter(traffic.version_for(plain(), user_of) for _ in range(10_000)),
        Counter(traffic.version_for(step(f"s{number}"), user_of) for number in range(10_000)),
        Counter(traffic.version_for(plain((b"X-User-Id", f"u{number}".encode())), user_of) for number in range(10_000)),
    ):
        for version, weight in WEIGHTS.items():
            assert found[version] == pytest.approx(weight * 100, abs=300)  # more than six standard deviations


def test_a_sequence_and_a_user_get_the_same_version_on_every_server() -> None:
    for request in (step("ada"), plain((b"x-user-id", b"ada")), plain(("X-User-ID", "ada"))):
        assert len({Traffic("m", WEIGHTS).version_for(request, user_of) for _ in range(20)}) == 1
    assert Traffic("m", WEIGHTS).version_for(step("ada"), user_of) == Traffic("m", WEIGHTS).version_for(
        plain(("x-user-id", "ada")), user_of
    )


def test_those_that_have_the_new_version_keep_it_when_its_share_grows() -> None:
    before, after = Traffic("m", {"1": 90, "2": 10}), Traffic("m", {"1": 60, "2": 40})
    requests = [step(f"s{number}") for number in range(1000)]
    had = [request for request in requests if before.version_for(request, user_of) == "2"]
    assert had
    assert {after.version_for(request, user_of) for request in had} == {"2"}


def test_a_request_names_its_version_in_a_header() -> None:
    def named(*headers: tuple[object, object]) -> str | None:
        return header_among(headers, VERSION_HEADER)

    assert named((b"X-Model-Version", b"9")) == "9"
    assert named((b"x-model-version", b"9"), ("x-model-version", "8")) == "8"
    assert not named((b"x-model-version", b""))
    assert named((b"x-model-versions", b"9"), (b"x-model-verzion", b"9")) is None


@pytest.mark.parametrize(
    ("gone", "staying", "left"),
    [
        ("3", 2, {"1": 84, "2": 16}),
        ("1", 2, {"2": 75, "3": 25}),
        ("23", 2, {"1": 100}),
        ("23", 1, {}),
        ("123", 1, {}),
        ("4", 3, WEIGHTS),
    ],
)
def test_those_that_stay_share_the_requests_of_those_that_go(gone: str, staying: int, left: dict[str, int]) -> None:
    assert weights_without(WEIGHTS, gone, staying) == left


def test_weights_of_many_versions_add_up_to_100_whatever_goes() -> None:
    weights = {str(number): 1 for number in range(100)}
    left = weights_without(weights, {"0", "1", "2"}, 97)
    assert (sum(left.values()), min(left.values()), max(left.values())) == (100, 1, 2)
