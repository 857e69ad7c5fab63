"""The values of ``load_workflows``: an archive with a name before it or not, and what else its registration takes.

look.war    other=look.war    look.war?response_timeout=300&startup_timeout=600&workers.length=2&workers.vowels=1-4
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from torchserve_py.base.settings.model_spec import ModelSpec, is_url, parse_model_specs
from torchserve_py.core.serving.errors import BadParameter
from torchserve_py.core.serving.serving import RegisterRequest

_TIMEOUTS: Final = ("response_timeout", "startup_timeout")
_WORKERS: Final = "workers."
_NUMBER: Final = r"[0-9]{1,9}"
_COUNTS: Final = re.compile(f"({_NUMBER})(?:-({_NUMBER}))?")


class Workers(NamedTuple):
    """How many workers a node has at least and at most."""

    least: int
    most: int


class StartupWorkflow(NamedTuple):
    """A registration, and the workers of those nodes whose specification does not say them."""

    request: RegisterRequest
    workers: Mapping[str, Workers]


def check(spec: ModelSpec) -> None:
    """Check that a workflow with this name and archive can be written so. Raises BadParameter: it cannot."""
    if parse_model_specs(str(spec)) != [spec] or "?" in spec.location:
        raise BadParameter(
            f"The workflow {str(spec)!r} could not be registered again after a restart, by load_workflows: a name must"
            " not hold any of , = : / ? #, and an archive no comma, question mark or equals sign."
        )


def written(spec: ModelSpec, request: RegisterRequest, workers: Mapping[str, Workers]) -> str:
    """Return the value for a workflow that was registered by a request, and some of whose nodes have other workers."""
    more = {name: str(value) for name in _TIMEOUTS if (value := getattr(request, name)) is not None}
    for node, (least, most) in sorted(workers.items()):
        more[f"{_WORKERS}{node}"] = str(least) if least == most else f"{least}-{most}"
    return f"{spec}?{urlencode(more)}" if more else str(spec)


def read(text: str) -> StartupWorkflow:
    """Return what a value asks for. Raises ValueError: it is none; what follows a ``?`` of a URL is the URL's."""
    (spec,) = parse_model_specs(text)
    location, mark, query = spec.location.rpartition("?")
    if not mark or is_url(spec.location):
        return StartupWorkflow(RegisterRequest(url=spec.location, model_name=spec.name), {})
    given = dict(parse_qsl(query, keep_blank_values=True))
    timeouts = {name: int(given.pop(name)) for name in _TIMEOUTS if re.fullmatch(_NUMBER, given.get(name, ""))}
    workers, wrong = dict[str, Workers](), list[str]()
    for name, value in given.items():
        found = _COUNTS.fullmatch(value)
        counts = None if found is None else Workers(int(found[1]), int(found[2] or found[1]))
        if counts is None or counts.least > counts.most or not name.startswith(_WORKERS):
            wrong.append(f"{name}={value}")
        else:
            workers[name.removeprefix(_WORKERS)] = counts
    if wrong or not (timeouts or workers):
        known = f"{'=SECONDS or '.join(_TIMEOUTS)}=SECONDS, or {_WORKERS}NODE=NUMBER or =LEAST-MOST"
        raise ValueError(f"{', '.join(wrong) or repr(query)} behind {location}? is not {known}")
    response, startup = (timeouts.get(name) for name in _TIMEOUTS)
    request = RegisterRequest(url=location, model_name=spec.name, response_timeout=response, startup_timeout=startup)
    return StartupWorkflow(request, workers)


def name_of(text: str) -> str:
    """Return what the workflow of a value is probably called: only its archive knows if the value does not say."""
    (spec,) = parse_model_specs(text)
    return spec.name or spec.location.partition("?")[0].rsplit("/", 1)[-1].removesuffix(".war")


def means(text: str, name: str, request: RegisterRequest) -> bool:
    """Return whether a value is for a workflow with this name, or for this request."""
    wanted = read(text).request
    return wanted.model_name == name or (wanted.model_name, wanted.url) == (request.model_name, request.url)
