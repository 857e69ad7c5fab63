"""Checks whether a model could be served as it is; for `--check-config`.

The check is a registration without side effects: the same code reads the model's files and decides, but nothing is
unpacked, installed or started.
"""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchserve_py.apis.open_inference.open_inference_keys import gets_body
from torchserve_py.base.settings.model_spec import expand_model_specs, is_url, parse_model_specs
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.archive.built_in_handlers import BUILT_IN_HANDLERS
from torchserve_py.core.archive.contract import Contract
from torchserve_py.core.archive.contracts import known_contracts
from torchserve_py.core.archive.downloads import file_name, split_checksum
from torchserve_py.core.archive.errors import ArchiveError
from torchserve_py.core.archive.locate import locate
from torchserve_py.core.archive.model_files import ModelFiles, files_in, outline
from torchserve_py.core.gpus.visible_devices import devices as devices_of_host
from torchserve_py.core.models.startup_models import StartupModel, remedy, startup_models
from torchserve_py.core.plans.config import InvalidModelConfig, ModelConfig
from torchserve_py.core.plans.contracts import configuration_of
from torchserve_py.core.plans.effective_config import EffectiveConfig
from torchserve_py.core.plans.plan import Plan, plan_of
from torchserve_py.core.serving.errors import InvalidModel, ModelError
from torchserve_py.core.serving.serving import RegisterRequest, Restored
from torchserve_py.core.workers.devices import Devices
from torchserve_py.core.workers.launch_command import worker_package_root
from torchserve_py.sequences.steps.kept_states import states_of
from torchserve_py.tools.operator_tools.handler_source import open_inference_line, syntax_problem

#: What a built-in handler needs apart from PyTorch, and the extra of this package that installs it.
_IMAGE_HANDLERS = ("image_classifier", "image_segmenter", "object_detector", "densenet_handler")
_SHOWN_REQUIREMENTS = 5
#: Bytes of a handler's file that is looked at.
_MOST_READ = 1 << 20
_VLLM_HANDLER = "vllm_handler"


@dataclass(slots=True)
class ModelCheck:
    """The result of a check: `facts` summarize the model, `notes` give hints, `problems` prevent serving it.

    ``served`` is the name and the version that it will have, if that is known.
    """

    label: str
    at_startup: bool
    facts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    served: tuple[str, str] | None = None


def check_models(settings: Settings, restored: Restored | None) -> Iterator[ModelCheck]:
    """Check the start-up models, and then all other models in the model store.

    ``restored`` takes the place of `load_models`.
    """
    devices = devices_of_host(settings)
    wanted = list(startup_models(settings, restored))
    told: set[str] = set()
    for model in wanted:
        yield _Check(settings, devices, model, told, at_startup=True).run()
    loaded = {model.request.url for model in wanted}
    for spec in expand_model_specs(parse_model_specs("all"), settings.model_store):
        if spec.location not in loaded:
            model = StartupModel(spec, RegisterRequest(url=spec.location))
            yield _Check(settings, devices, model, told, at_startup=False).run()


class _Check:
    def __init__(
        self, settings: Settings, devices: Devices, model: StartupModel, told: set[str], *, at_startup: bool
    ) -> None:
        self._settings = settings
        self._told = told
        self._devices = devices
        self._request = model.request
        self._at_startup = at_startup
        self._out = ModelCheck(str(model.spec) + ("" if at_startup else " (not loaded at the start)"), at_startup)

    def run(self) -> ModelCheck:
        try:
            path = self._path()
            if path is not None:
                request, has_default = self._request, bool(self._settings.default_service_handler)
                with outline(path, url=request.url, handler=request.handler, has_default_handler=has_default) as files:
                    self._check(files)
        except (ArchiveError, ModelError, OSError) as error:
            self._out.problems.append(f"{error}{remedy(self._request.url)}")
        return self._out

    def _path(self) -> Path | None:
        """Return the model's location; None if the model must be downloaded first."""
        url, store = self._request.url, self._settings.model_store
        if not is_url(url):
            return locate(url, store)
        try:
            bare, _ = split_checksum(url)
            path = store / file_name(bare)
        except ValueError as error:
            self._out.problems.append(f"{url}: {error}")
            return None
        if not any(pattern.fullmatch(bare) for pattern in self._settings.allowed_urls):
            self._out.problems.append(
                f"allowed_urls does not allow {bare}; without that setting only file:// URLs are allowed here"
            )
            return None
        if not path.exists():
            self._out.facts.append("will be downloaded, was not looked at")
            return None
        self._out.facts.append(f"downloaded before, as {path.name}")
        return path

    def _check(self, files: ModelFiles) -> None:
        names = files_in(files.model_dir)
        is_configurable = self._check_files(files, names)
        plan = self._plan(files) if is_configurable else None
        called = self._request.model_name or files.name, files.manifest.model_version
        name, version = called if plan is None else (plan.name, plan.version)
        contract = known_contracts()[files.contract]
        named = [] if contract.handlers else [f"contract {contract.name}"]
        self._out.facts[:0] = [f'model "{name}" version {version}', *named]
        if plan is not None:
            workers = f"{plan.config.initial_workers} worker(s)"
            if plan.config.follows_load:
                workers += f", {plan.config.min_workers} to {plan.config.max_workers} as the load asks for"
            self._out.served = name, version
            self._out.facts.append(workers if self._at_startup else "valid configuration")
            if contract.handlers:
                has_requirements = plan.requirements_file is not None
                self._check_handler(plan.handler, files.model_dir, names, has_requirements=has_requirements)
                if self._settings.service_envelope is None and not gets_body(plan.config.plugin_keys, self._settings):
                    self._check_rows(plan.handler, files.model_dir)
            else:
                self._check_contract_packages(contract, plan)
            self._check_requirements(plan)

    def _check_files(self, files: ModelFiles, names: frozenset[str]) -> bool:
        """Report missing files; return whether the configuration file, if the manifest names one, is there."""
        manifest = files.manifest
        for key, file in (
            ("serializedFile", manifest.serialized_file),
            ("modelFile", manifest.model_file),
            ("requirementsFile", manifest.requirements_file),
            ("configFile", manifest.config_file),
        ):
            if file is not None and file not in names:
                self._out.problems.append(f"the manifest names the {key} {file}, which is not there")
        return manifest.config_file is None or manifest.config_file in names

    def _plan(self, files: ModelFiles) -> Plan | None:
        """Return the plan that a registration would make; None if it would fail."""
        try:
            configured = configuration_of(files, self._settings.model_store)
            self._out.notes += configured.config.warnings
            self._out.notes += [each for each in configured.shared_warnings if each not in self._told]
            self._told.update(configured.shared_warnings)
            plan = plan_of(
                self._request,
                files,
                configured,
                self._settings,
                self._devices,
                states_of(configured.config.plugin_keys),
                at_startup=self._at_startup,
            )
        except InvalidModel as error:
            cause = error.__cause__
            if isinstance(cause, InvalidModelConfig):
                self._out.problems += [f"{cause.source}: {problem}" for problem in cause.problems]
            else:
                self._out.problems.append(str(error))
            return None
        self._out.notes += _deviations(configured.config, plan.config, self._settings)
        return plan

    def _check_handler(self, handler: str, folder: Path, names: frozenset[str], *, has_requirements: bool) -> None:
        path = handler.partition(":")[0].removesuffix(".py")
        name = path.rpartition("/")[2]
        places = (f"{path}.py", f"{name}.py", f"{path}/__init__.py", f"{name}/__init__.py")
        if found := [place for place in places if place in names]:
            self._out.facts.append(f"handler {handler}")
            source = (folder / found[0]).read_bytes()
            is_whole = len(source) < _MOST_READ  # of larger files an outline has only the beginning
            if is_whole and (problem := syntax_problem(source)) is not None:
                self._out.problems.append(f"{found[0]} cannot be loaded: {problem}")
        elif (worker_package_root() / "ts" / "torch_handler" / f"{name}.py").is_file():
            self._out.facts.append(f"built-in handler {name}")
            self._check_packages(name)
        elif name in BUILT_IN_HANDLERS:
            self._out.problems.append(f"the handler {name} of TorchServe is not part of this server")
        elif _is_installed(name):
            self._out.notes.append(f"the handler {name} is not in the archive, but a module of this environment")
        elif has_requirements and self._settings.install_py_dep_per_model:
            self._out.notes.append(f"the handler {name} is not in the archive; its requirements must bring it")
        else:
            problem = f"there is no handler {handler}: no {name}.py in the archive, and no built-in of that name"
            self._out.problems.append(problem)

    def _check_rows(self, handler: str, folder: Path) -> None:
        """Name a handler that reads Open Inference requests itself, as TorchServe gives them to it."""
        file = f"{handler.partition(':')[0].removesuffix('.py')}.py"
        for path in (folder / file, folder / Path(file).name):
            if path.is_file():
                line = open_inference_line(path.read_bytes())
                if line is not None:
                    self._out.notes.append(
                        f"{path.name} reads Open Inference requests itself, it seems (line {line}): for"
                        " /v2/models/{model}/infer TorchServe gives it the JSON as body, here it gets a value for each"
                        " tensor; openInferenceRows: body in model-config.yaml (or open_inference_rows=body) is"
                        " TorchServe's way"
                    )
                return

    def _check_packages(self, handler: str) -> None:
        missing = [] if _is_installed("torch") else ["torchserve-py[torch]"]
        if handler in _IMAGE_HANDLERS and not _is_installed("PIL"):
            missing.append("torchserve-py[vision]")
        if handler == _VLLM_HANDLER and not _is_installed("vllm"):
            missing = ["vllm"]  # vllm installs the PyTorch version that it was built for
        if missing:
            self._out.problems.append(f"the handler {handler} needs more packages: pip install {' '.join(missing)}")

    def _check_contract_packages(self, contract: Contract, plan: Plan) -> None:
        missing = [module for module in contract.packages if not _is_installed(module)]
        is_brought = self._settings.install_py_dep_per_model and (plan.requirements_file or plan.requirements)
        if missing and not is_brought:
            self._out.problems.append(
                f"{contract.name} models need the package {missing[0]}: pip install 'torchserve-py[{contract.name}]'"
            )

    def _check_requirements(self, plan: Plan) -> None:
        listed = [plan.requirements_file] if plan.requirements_file else []
        if plan.requirements:
            shown = ", ".join(plan.requirements[:_SHOWN_REQUIREMENTS])
            more = ", …" if len(plan.requirements) > _SHOWN_REQUIREMENTS else ""
            listed.append(f"requirements ({shown}{more})")
        required = " and ".join(listed)
        if required and self._settings.install_py_dep_per_model:
            self._out.notes.append(f"{required}: installed when the model is registered")
        elif required:
            self._out.notes.append(f"{required}: not installed, because install_py_dep_per_model is not true")
        if not required and plan.config.use_venv:
            self._out.notes.append("useVenv makes an environment that nothing is installed into")


def _deviations(yaml: ModelConfig, config: EffectiveConfig, settings: Settings) -> Iterator[str]:
    """Yield the differences between how this server and TorchServe serve this model."""
    for key, value, default in (
        ("responseTimeout", yaml.response_timeout, settings.default_response_timeout),
        ("startupTimeout", yaml.startup_timeout, settings.default_startup_timeout),
    ):
        if yaml.raw and value is None and default != 120:
            yield f"{key} is {default} s, from config.properties; TorchServe takes 120 s for a model with a YAML file"
    if yaml.max_batch_delay_ms == 0:
        yield "maxBatchDelay 0 means: do not wait; TorchServe takes it for 100 ms"
    if config.stateful:
        room = f"max(maxNumSequence {config.max_num_sequence}, workers x batchSize {config.batch_size})"
        yield f"room for {room} sequences at once; in TorchServe maxNumSequence alone counts"
        if not config.restart_expired_sequences:
            yield (
                "a request for a sequence that has expired is refused with 410; TorchServe starts it again, as does"
                " onExpiredSequence: restart"
            )


def _is_installed(module: str) -> bool:
    return module.isidentifier() and importlib.util.find_spec(module) is not None
