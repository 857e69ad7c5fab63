"""The files of the page. They hold no data, so that they need no key."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent / "page"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: Files of the page that lie elsewhere in the package, by the name under which the page has them.
_FOREIGN: Final = {"live-session.js": Path(__file__).parents[2] / "client" / "live-session.js"}
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "worker-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "media-src blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
#: What the browser may do with the page: nothing from elsewhere, no inline code, no frame around it.
HEADERS: Final = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("permissions-policy", "microphone=(self), camera=(), geolocation=()"),
)


class PageFiles:
    """The files by their names, read once."""

    def __init__(self) -> None:
        found = {str(path.relative_to(_FOLDER)): path for path in _FOLDER.rglob("*") if path.suffix in _TYPES}
        self._files = {
            name: (path.read_bytes(), (("content-type", _TYPES[path.suffix]), *HEADERS))
            for name, path in {**found, **_FOREIGN}.items()
        }

    def get(self, name: str) -> tuple[bytes, tuple[tuple[str, str], ...]] | None:
        """Return the content of a file and the headers of its answer; None if there is no such file."""
        return self._files.get(name or "index.html")
