"""What ``--check-config`` prints: how the configuration and the model store of a TorchServe would fare here."""

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torchserve_py.base.settings.flags import Flags
from torchserve_py.base.settings.model_spec import is_url
from torchserve_py.base.settings.resolution import Resolution
from torchserve_py.base.settings.table import DEFAULT_ORIGIN, Settings
from torchserve_py.base.terminal import tell
from torchserve_py.core.serving.serving import Restored
from torchserve_py.endpoints.binding import http_addresses
from torchserve_py.fleet.saved_models.restored_models import restored
from torchserve_py.fleet.saved_models.saved_models_settings import SavedModelsSettings
from torchserve_py.openings import problems_of_opening
from torchserve_py.ops.browser_guard.guard_settings import GuardSettings
from torchserve_py.tools.operator_tools.model_check import ModelCheck, check_models
from torchserve_py.tools.operator_tools.print_config import shown
from torchserve_py.versions.traffic.demanded_weights import demanded_weights, misfits

#: The modules of `ts.torch_handler.request_envelope` that have an envelope.
_ENVELOPES = ("body", "json", "kserve", "kservev2")


def print_report(flags: Flags) -> int:
    """Print the findings; return the exit status, 1 if the server or a model would not start."""
    lines, passed = check(Resolution(flags, os.environ, Path.cwd()))
    tell("\n".join(lines))
    return 0 if passed else 1


def check(resolution: Resolution) -> tuple[list[str], bool]:
    """Check what was read; return the lines to print, and whether the server and every model would start.

    The models are looked at only if the settings are right: they depend on them.
    """
    lines = list(_section("Acted on", _acted_on(resolution), "nothing: every setting has its default"))
    lines += _section("Ignored, unknown or doubtful", resolution.warnings)
    if resolution.errors:
        lines += _section("Refused: the server would not start", resolution.errors)
        return lines, False
    settings = resolution.settings()
    problems = []
    if settings.service_envelope not in (None, *_ENVELOPES):
        known = f"there is no such envelope; it must be one of {', '.join(_ENVELOPES)}"
        problems.append(f"service_envelope = {settings.service_envelope}: {known}")
    problems += asyncio.run(problems_of_opening(settings))
    lines += _section("Refused", problems)
    lines += _section("Different from TorchServe", _deviations(resolution, settings))
    earlier = restored(settings)
    models = list(check_models(settings, earlier))
    misfits = list(_misfits(settings, earlier, models))
    lines += _section("Refused: the server would not start", misfits)
    about = [line for model in models for line in _model_lines(model)]
    lines += _section(f"Models in {settings.model_store} and at the start", about, "none")
    failed = sum(bool(model.problems) for model in models)
    lines.append(f"{len(models)} model(s) looked at, {failed} would not be served.")
    return lines, not failed and not problems and not misfits


def _section(title: str, lines: Iterable[str], nothing: str | None = None) -> Iterator[str]:
    shown = list(lines) or ([nothing] if nothing else [])
    if shown:
        yield f"{title}:"
        yield from (f"  {line}" for line in shown)
        yield ""


def _acted_on(resolution: Resolution) -> Iterator[str]:
    for name, effective in resolution.effective.items():
        if effective.origin != DEFAULT_ORIGIN:
            yield f"{name} = {shown(name, effective.value)}  ({effective.origin})"


def _deviations(resolution: Resolution, settings: Settings) -> Iterator[str]:
    """What an operator of TorchServe may not expect of these settings."""
    by_default = {name for name, effective in resolution.effective.items() if effective.origin == DEFAULT_ORIGIN}
    remote = settings.enable_model_api or any(is_url(spec.location) for spec in settings.load_models)
    if "allowed_urls" in by_default and remote:
        yield "allowed_urls is not set: archives at http(s) URLs are refused; TorchServe downloads them from anywhere"
    if settings.inference_address == settings.management_address and not settings.disable_token_authorization:
        yield "one listener for both APIs: each call needs the token of its own API"
    if (
        settings.disable_token_authorization
        and not settings.of(GuardSettings).allowed_hosts
        and _serves_other_machines(settings)
    ):
        yield (
            "tokens are off and allowed_hosts is not set: requests by the name of a container, an ingress or the"
            " like are 421; TorchServe answers to any name"
        )
    if any(address.is_tls for address in (settings.inference_address, settings.management_address)):
        yield "https takes TLS 1.2 and 1.3 with modern ciphers; clients that know only CBC ciphers cannot connect"
    if not settings.no_config_snapshots:
        kept = settings.of(SavedModelsSettings).snapshots_kept
        yield f"the newest {kept} snapshots are kept; TorchServe never deletes one"


def _serves_other_machines(settings: Settings) -> bool:
    return not all(address.is_loopback for _, address in http_addresses(settings))


def _misfits(settings: Settings, earlier: Restored | None, models: Sequence[ModelCheck]) -> Iterator[str]:
    """Yield what `traffic` names that will not be served, as far as all that will be is known."""
    served: dict[str, set[str]] = {}
    for model in models:
        if model.at_startup:
            if model.served is None:
                return
            served.setdefault(model.served[0], set()).add(model.served[1])
    yield from misfits(settings, demanded_weights(settings, earlier), served)


def _model_lines(model: ModelCheck) -> Iterator[str]:
    yield f"{model.label}: {'NOT SERVED' if model.problems else 'fine'}" + (
        f" ({', '.join(model.facts)})" if model.facts else ""
    )
    yield from (f"  problem: {problem}" for problem in model.problems)
    yield from (f"  note: {note}" for note in model.notes)
