"""The error for a missing package that only some models need."""


def missing_package(error: ModuleNotFoundError, what: str, extra: str) -> ModuleNotFoundError:
    """Return the error to raise instead of ``error``: who needs the package, and how to install it.

    Args:
        what: Who needs it, in the plural: "Image handlers".
        extra: The extra of this project that installs it.
    """
    package = (error.name or str(error)).partition(".")[0]
    text = f"{what} need the package {package}, which is not installed: pip install 'torchserve-py[{extra}]'"
    return ModuleNotFoundError(text, name=error.name)
