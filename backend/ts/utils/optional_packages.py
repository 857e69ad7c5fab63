"""The error for a missing package that only some models need."""


def missing_package(error: ModuleNotFoundError, what: str, extra: str) -> ModuleNotFoundError:
    """Return the error to raise instead of ``error``: ``what`` (plural) needs the package, which ``extra`` installs."""
    package = (error.name or str(error)).partition(".")[0]
    text = f"{what} need the package {package}, which is not installed: pip install 'torchserve-py[{extra}]'"
    return ModuleNotFoundError(text, name=error.name)
