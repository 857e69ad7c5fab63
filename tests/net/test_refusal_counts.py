"""What is refused before it is a request is counted, and logged now and then."""

import pytest

from torchserve_py.net.refusal_counts import RefusalReason, Refusals


def test_each_is_counted_and_a_reason_has_a_line_each_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    counted, now = list[RefusalReason](), [100.0]
    refusals = Refusals(counted.append, lambda: now[0])
    for _ in range(1000):
        refusals.note(RefusalReason.malformed, ("10.0.0.1", 1234), "no HTTP")
    refusals.note(RefusalReason.tls_failed, None)
    assert (counted.count(RefusalReason.malformed), counted.count(RefusalReason.tls_failed)) == (1000, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "A client sends bytes that are not HTTP: refused 10.0.0.1 (no HTTP)",
        "A TLS handshake failed: refused a Unix socket",
    ]
    now[0] += 10
    refusals.note(RefusalReason.malformed, ("10.0.0.2", 1), "")
    assert caplog.records[-1].getMessage().endswith("refused 10.0.0.2; and 999 more since the last line")
