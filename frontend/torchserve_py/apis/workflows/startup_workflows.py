"""The values of ``load_workflows``: an archive with a name before it or not, and the timeouts of its registration.

look.war    other=look.war    look.war?response_timeout=300&startup_timeout=600
"""

from typing import Final
from urllib.parse import parse_qsl, urlencode

from torchserve_py.base.settings.model_spec import ModelSpec, is_url, parse_model_specs
from torchserve_py.core.serving.errors import BadParameter
from torchserve_py.core.serving.serving import RegisterRequest

_TIMEOUTS: Final = ("response_timeout", "startup_timeout")


def check(spec: ModelSpec) -> None:
    """Check that a workflow with this name and archive can be written so. Raises BadParameter: it cannot."""
    if parse_model_specs(str(spec)) != [spec] or "?" in spec.location:
        raise BadParameter(
            f"The workflow {str(spec)!r} could not be registered again after a restart, by load_workflows: a name must"
            " not hold any of , = : / ? #, and an archive no comma, question mark or equals sign."
        )


def written(spec: ModelSpec, request: RegisterRequest) -> str:
    """Return the value for a workflow that was registered by a request."""
    timeouts = {name: value for name in _TIMEOUTS if (value := getattr(request, name)) is not None}
    return f"{spec}?{urlencode(timeouts)}" if timeouts else str(spec)


def read(text: str) -> RegisterRequest:
    """Return the registration of a value. Raises ValueError: it is none; what follows a ``?`` of a URL is the URL's."""
    (spec,) = parse_model_specs(text)
    location, mark, query = spec.location.rpartition("?")
    if not mark or is_url(spec.location):
        return RegisterRequest(url=spec.location, model_name=spec.name)
    timeouts = dict(parse_qsl(query, keep_blank_values=True))
    wrong = [f"{name}={value}" for name, value in timeouts.items() if name not in _TIMEOUTS or not _is_number(value)]
    if wrong or not timeouts:
        known = "=SECONDS or ".join(_TIMEOUTS)
        raise ValueError(f"{', '.join(wrong) or repr(query)} behind {location}? is not {known}=SECONDS")
    response, startup = (int(timeouts[name]) if name in timeouts else None for name in _TIMEOUTS)
    return RegisterRequest(url=location, model_name=spec.name, response_timeout=response, startup_timeout=startup)


def name_of(text: str) -> str:
    """Return what the workflow of a value is probably called: only its archive knows if the value does not say."""
    try:
        (spec,) = parse_model_specs(text)
    except ValueError:  # the registration tells what is wrong
        spec = ModelSpec(None, text)
    return spec.name or spec.location.partition("?")[0].rsplit("/", 1)[-1].removesuffix(".war")


def means(text: str, name: str, request: RegisterRequest) -> bool:
    """Return whether a value is for a workflow with this name, or for this request."""
    try:
        wanted = read(text)
    except ValueError:
        return False
    return wanted.model_name == name or (wanted.model_name, wanted.url) == (request.model_name, request.url)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
