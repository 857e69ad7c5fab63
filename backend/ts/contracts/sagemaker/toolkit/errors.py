"""Errors that scripts raise to choose the status of an answer, under the toolkit's names."""


class UnsupportedFormatError(Exception):
    """A content type that cannot be read (status 415) or written (406)."""

    def __init__(self, content_type: str | None, *, status_code: int = 415) -> None:
        super().__init__(
            f"Content type {content_type} is not supported: write an input_fn that reads it, or an output_fn that"
            " writes it; without them application/json, text/csv and application/x-npy are supported."
        )
        self.status_code = status_code


class BaseInferenceToolkitError(Exception):
    """An error with the status, the body and the reason phrase of its answer."""

    def __init__(self, status_code: int, message: str, phrase: str) -> None:
        super().__init__(status_code, message, phrase)
        self.status_code = status_code
        self.message = message
        self.phrase = phrase


class GenericInferenceToolkitError(BaseInferenceToolkitError):
    """An error whose reason phrase is its message unless it has one of its own."""

    def __init__(self, status_code: int, message: str | None = None, phrase: str | None = None) -> None:
        message = message or "Invalid Request"
        super().__init__(status_code, message, phrase or message)
