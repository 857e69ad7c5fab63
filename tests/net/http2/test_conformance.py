"""What the package does of RFC 9113 and RFC 7541, case by case; docs/http2.md has the same table."""

import re
from pathlib import Path

import pytest
from tests.net.http2.conformance import Case, check
from tests.net.http2.conformance_frames import CASES
from tests.net.http2.conformance_messages import HEADERS, REQUESTS
from tests.net.http2.raw_client import RawClient

PAGE = Path(__file__).parents[3] / "docs" / "http2.md"
TABLE = [("9113", case) for case in (*CASES, *REQUESTS)] + [("7541", case) for case in HEADERS]


def row(rfc: str, case: Case) -> str:
    return f"| {rfc}, {case.section} | {case.title} | {case.outcome} |"


@pytest.mark.parametrize(("rfc", "case"), TABLE, ids=[f"{rfc}-{case.section}-{case.title}" for rfc, case in TABLE])
async def test_case(rfc: str, case: Case, client: RawClient) -> None:
    await check(case, client)


def test_the_page_has_every_case() -> None:
    rows = re.findall(r"^\| (?:9113|7541), .*$", PAGE.read_text(), re.MULTILINE)

    assert rows == [row(rfc, case) for rfc, case in TABLE]
