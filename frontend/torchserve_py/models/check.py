"""Whether a model would be served as it is, found out without unpacking or starting anything; for `--check-config`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchserve_py.archive.checksum import split_checksum
from torchserve_py.archive.contents import Contents, read_contents
from torchserve_py.archive.contract import TORCHSERVE
from torchserve_py.archive.errors import ArchiveError
from torchserve_py.archive.fetch import file_name
from torchserve_py.archive.handler_name import BUILT_IN_HANDLERS
from torchserve_py.archive.locate import locate
from torchserve_py.archive.model_spec import expand_model_specs, is_url, parse_model_specs
from torchserve_py.models.assembly import RegisterRequest, settle
from torchserve_py.models.config import InvalidModelConfig, ModelConfig, parse_model_config
from torchserve_py.models.contracts import configure
from torchserve_py.models.effective import EffectiveConfig
from torchserve_py.models.errors import ModelError
from torchserve_py.models.startup import StartupModel, startup_models
from torchserve_py.nvidia_smi import list_gpus
from torchserve_py.schemas.yaml_mapping import MAX_SIZE, UnreadableYaml, parse_yaml_mapping
from torchserve_py.settings import Settings
from torchserve_py.workers.devices import Devices, UnsuitableDevices, visible_devices
from torchserve_py.workers.process import worker_package_root

#: What a built-in handler needs apart from PyTorch, and the extra of this package that installs it.
_IMAGE_HANDLERS = ("image_classifier", "image_segmenter", "object_detector", "densenet_handler")
_VLLM_HANDLER = "vllm_handler"


@dataclass(slots=True)
class ModelCheck:
    """What was found: `facts` in short, `notes` are worth knowing, with `problems` the model would not be served."""

    label: str
    facts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check_models(settings: Settings) -> Iterator[ModelCheck]:
    """Check the start-up models, and then whatever else the model store holds."""
    devices = Devices(visible_devices(list_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"), settings.number_of_gpu))
    wanted = startup_models(settings)
    for model in wanted:
        yield _Check(settings, devices, model, at_startup=True).run()
    loaded = {model.request.url for model in wanted}
    for spec in expand_model_specs(parse_model_specs("all"), settings.model_store):
        if spec.location not in loaded:
            model = StartupModel(spec, RegisterRequest(url=spec.location))
            yield _Check(settings, devices, model, at_startup=False).run()


class _Check:
    """The check of one model."""

    def __init__(self, settings: Settings, devices: Devices, model: StartupModel, *, at_startup: bool) -> None:
        self._settings = settings
        self._devices = devices
        self._request = model.request
        self._at_startup = at_startup
        self._out = ModelCheck(str(model.spec) + ("" if at_startup else " (not loaded at the start)"))

    def run(self) -> ModelCheck:
        try:
            path = self._path()
            if path is not None:
                self._check(read_contents(path, url=self._request.url, handler=self._request.handler))
        except (ArchiveError, ModelError, OSError) as error:
            self._out.problems.append(str(error))
        return self._out

    def _path(self) -> Path | None:
        """Where the model is now; None where it has yet to be downloaded."""
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

    def _check(self, contents: Contents) -> None:
        name, version = self._request.model_name or contents.name, contents.manifest.model_version
        self._out.facts.insert(0, f'model "{name}" version {version}')
        if contents.contract != TORCHSERVE:
            self._out.facts.append(f"contract {contents.contract}")
        self._check_files(contents)
        yaml = self._with_contract(contents, self._yaml(contents))
        if yaml is not None:
            self._out.notes += yaml.warnings
            config = self._effective(name, yaml, contents)
            self._out.facts.append(f"{config.min_workers} worker(s)" if self._at_startup else "valid configuration")
            self._out.notes += _deviations(yaml, config, self._settings)
        if contents.contract == TORCHSERVE:
            self._check_handler(contents)
        self._check_requirements(contents, yaml)

    def _check_files(self, contents: Contents) -> None:
        manifest = contents.manifest
        for key, file in (
            ("serializedFile", manifest.serialized_file),
            ("modelFile", manifest.model_file),
            ("requirementsFile", manifest.requirements_file),
            ("configFile", manifest.config_file),
        ):
            if file is not None and file not in contents.files:
                self._out.problems.append(f"the manifest names the {key} {file}, which is not there")

    def _yaml(self, contents: Contents) -> ModelConfig | None:
        """The model's configuration, None where it is missing or wrong."""
        source = contents.manifest.config_file
        if source is None:
            return ModelConfig()
        if contents.config is None:
            return None
        try:
            if len(contents.config) > MAX_SIZE:
                raise UnreadableYaml(f"the file is larger than {MAX_SIZE} bytes, the most that is read")
            return parse_model_config(parse_yaml_mapping(contents.config), source, contents.contract)
        except UnreadableYaml as error:
            self._out.problems.append(f"{source}: {error}")
        except InvalidModelConfig as error:
            self._out.problems += [f"{error.source}: {problem}" for problem in error.problems]
        return None

    def _with_contract(self, contents: Contents, yaml: ModelConfig | None) -> ModelConfig | None:
        """The configuration with what the contract's own files say, None where it is missing or wrong."""
        if yaml is None or contents.contract == TORCHSERVE:
            return yaml
        if contents.model_dir is None:
            self._out.facts.append(f"the files of its contract {contents.contract} are checked when it is registered")
            return yaml
        try:
            return configure(contents.contract, contents.model_dir, yaml).config
        except InvalidModelConfig as error:
            self._out.problems += [f"{error.source}: {problem}" for problem in error.problems]
            return None

    def _effective(self, name: str, yaml: ModelConfig, contents: Contents) -> EffectiveConfig:
        try:
            config, _ = settle(
                self._request,
                name,
                contents.manifest.model_version,
                contents.manifest,
                yaml,
                self._settings,
                self._devices,
                at_startup=self._at_startup,
                contract=contents.contract,
            )
        except (InvalidModelConfig, UnsuitableDevices) as error:
            raise _Unsuitable(str(error)) from error
        return config

    def _check_handler(self, contents: Contents) -> None:
        handler = self._request.handler or contents.manifest.handler or self._settings.default_service_handler
        if not handler:
            self._out.problems.append("no handler is named in the manifest or as default_service_handler")
            return
        path = handler.partition(":")[0].removesuffix(".py")
        name = path.rpartition("/")[2]
        places = {f"{path}.py", f"{name}.py", f"{path}/__init__.py", f"{name}/__init__.py"}
        if places & contents.files:
            self._out.facts.append(f"handler {handler}")
        elif (worker_package_root() / "ts" / "torch_handler" / f"{name}.py").is_file():
            self._out.facts.append(f"built-in handler {name}")
            self._check_packages(name)
        elif name in BUILT_IN_HANDLERS:
            self._out.problems.append(f"the handler {name} of TorchServe is not part of this server")
        elif _is_installed(name):
            self._out.notes.append(f"the handler {name} is not in the archive, but a module of this environment")
        elif contents.manifest.requirements_file and self._settings.install_py_dep_per_model:
            self._out.notes.append(f"the handler {name} is not in the archive; its requirements must bring it")
        else:
            problem = f"there is no handler {handler}: no {name}.py in the archive, and no built-in of that name"
            self._out.problems.append(problem)

    def _check_packages(self, handler: str) -> None:
        missing = [] if _is_installed("torch") else ["torchserve-py[torch]"]
        if handler in _IMAGE_HANDLERS and not _is_installed("PIL"):
            missing.append("torchserve-py[vision]")
        if handler == _VLLM_HANDLER and not _is_installed("vllm"):
            missing = ["vllm"]  # which brings the PyTorch that it was built for
        if missing:
            self._out.problems.append(f"the handler {handler} needs more packages: pip install {' '.join(missing)}")

    def _check_requirements(self, contents: Contents, yaml: ModelConfig | None) -> None:
        required, installing = contents.manifest.requirements_file, self._settings.install_py_dep_per_model
        if required and installing:
            self._out.notes.append(f"{required} is installed when the model is registered")
        elif required:
            self._out.notes.append(f"{required} is not installed, because install_py_dep_per_model is not true")
        if required is None and yaml is not None and yaml.use_venv:
            self._out.notes.append("useVenv makes an environment that nothing is installed into")


class _Unsuitable(ModelError):
    """The model's configuration does not fit this host."""


def _deviations(yaml: ModelConfig, config: EffectiveConfig, settings: Settings) -> Iterator[str]:
    """Where this server does something else with this model than TorchServe does."""
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
                "a request for a sequence that has expired is refused with 410; TorchServe starts it anew, as does"
                " onExpiredSequence: restart"
            )


def _is_installed(module: str) -> bool:
    return module.isidentifier() and importlib.util.find_spec(module) is not None
