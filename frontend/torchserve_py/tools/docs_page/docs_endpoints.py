"""The endpoint of the page ``/docs``: Swagger UI, and the OpenAPI document ``/openapi.json``.

The page itself holds no data and needs no key; the document needs the inference key, as the models do.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchserve_py.apis.workflows.workflow_endpoints import workflows_of
from torchserve_py.endpoints.failures import not_found
from torchserve_py.endpoints.page_files import TYPES, page_files
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import READING, Endpoints, PathValues, Route
from torchserve_py.net.http1.request import Request
from torchserve_py.tools.docs_page.models_document import models_document

_FOLDER: Final = Path(__file__).parent / "page"
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # Swagger UI writes styles into its elements
        "img-src 'self' blob: data:",
        "media-src blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Final = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
)


class DocsEndpoints(Endpoints):
    """Shows the page and the document."""

    def routes(self) -> Iterator[Route]:
        yield Route("/docs", self._page, READING, token=None)
        yield Route("/docs/{file:path}", self._page, READING, token=None)
        yield Route("/openapi.json", self._document, READING)

    def _page(self, request: Request, values: PathValues) -> Answer:
        path = request.path
        if "file" not in values and not path.endswith("/"):  # relative links start from the folder
            return Answer(307, b"", (("location", "docs/"),))
        found = page_files(_FOLDER).get(values.get("file", "index.html"))
        if found is None:
            raise not_found()
        return Answer(200, found.read_bytes(), (("content-type", TYPES[found.suffix]), *_HEADERS))

    def _document(self, request: Request, values: PathValues) -> Answer:
        settings, tokens = self.settings, self.context.tokens
        workflows = self.context.shared(workflows_of).workflows()
        header = settings.ts_header_key_sequence_id
        document = models_document(self.serving, workflows, header, needs_key=tokens is not None)
        return json_answer(document)
