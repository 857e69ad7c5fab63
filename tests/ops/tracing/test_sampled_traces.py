"""Which traces are kept: the client's flag decides, unless the sampler that is configured does not follow clients."""

import pytest

from ts.ops.tracing.span_export import drops_what_is_not_sampled, is_not_sampled

sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402 - the package is optional

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (TRACE + "00", True),
        (TRACE + "02", True),
        (TRACE + "01", False),
        (TRACE + "03", False),
        (TRACE + "0", False),
        (TRACE + "0x", False),
        (TRACE + "-1", False),
        (TRACE + "00-more", False),
        ("cc" + TRACE[2:] + "00", False),  # a version to come, which may mean something else
        ("", False),
    ],
)
def test_only_a_valid_header_says_that_a_trace_is_not_sampled(header: str, expected: bool) -> None:
    assert is_not_sampled(header) is expected


def test_a_sampler_that_does_not_follow_clients_sees_all_requests() -> None:
    assert drops_what_is_not_sampled(TracerProvider())
    assert drops_what_is_not_sampled(TracerProvider(sampler=sampling.ParentBased(sampling.TraceIdRatioBased(0.5))))
    assert not drops_what_is_not_sampled(TracerProvider(sampler=sampling.ALWAYS_ON))
    follows = sampling.ParentBased(sampling.ALWAYS_ON, remote_parent_not_sampled=sampling.ALWAYS_ON)
    assert not drops_what_is_not_sampled(TracerProvider(sampler=follows))
