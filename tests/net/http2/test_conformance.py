"""What the package does of RFC 9113 and RFC 7541, case by case."""

import pytest
from tests.net.http2.conformance import Case, check
from tests.net.http2.conformance_frames import CASES
from tests.net.http2.conformance_messages import HEADERS, REQUESTS
from tests.net.http2.raw_client import RawClient

TABLE = [("9113", case) for case in (*CASES, *REQUESTS)] + [("7541", case) for case in HEADERS]


@pytest.mark.parametrize(("rfc", "case"), TABLE, ids=[f"{rfc}-{case.section}-{case.title}" for rfc, case in TABLE])
async def test_case(rfc: str, case: Case, client: RawClient) -> None:
    await check(case, client)
