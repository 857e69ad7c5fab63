"""How much of what a GPU can do reaches clients: images per second of a convolutional network, alone and served.

    python -m benchmarks.gpu [--batch 32] [--connections 128] [--seconds 10] [--size 224] [--width 64] [--device cpu]

For each way to compute (`autocast`, `channelsLast`) one line: images per second of torch alone, with batches that are
on the GPU already; those of the server, one worker, one FP32 image in each request (binary tensors); their ratio; and
the median of the GPU's utilization while it was served. It needs torch, wrk, and a GPU unless `--device cpu` is given.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import launchers
from benchmarks.benchmark_models import ROOT, Probe
from benchmarks.loads import HttpLoad, LoadFailed
from benchmarks.servers import Server, ServerFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(ROOT / "frontend"))
sys.path.insert(0, str(ROOT / "backend"))

from torchserve_py.ops.system_metrics.nvml import read_usage
from ts.torch_handler.computing import Computing

WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"channelsLast": True},
    {"autocast": "bfloat16"},
    {"autocast": "bfloat16", "channelsLast": True},
)
CLASSES = 1000
WARM_UP_CALLS = 10
SAMPLES_PER_SECOND = 5
_PATH = "/v2/models/images/infer"


def network(width: int) -> torch.nn.Module:
    """Return a network of the kind of ResNet without shortcuts; `width` is the number of its first channels."""

    def block(inputs: int, outputs: int, stride: int) -> list[torch.nn.Module]:
        convolution = torch.nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return [convolution, torch.nn.BatchNorm2d(outputs), torch.nn.ReLU()]

    layers = block(3, width, 2)
    for factor in (1, 2, 4, 8):
        layers += block(width * max(1, factor // 2), width * factor, 2)
        layers += block(width * factor, width * factor, 1) * 3
    return torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(width * 8, CLASSES)
    ).eval()


@dataclass(frozen=True)
class ImageModel:
    """The network as TorchScript, with the built-in `base_handler`."""

    network: torch.nn.Module
    config: dict[str, Any]
    probe: Probe
    name: str = "images"

    def put_into(self, store: Path) -> str:
        """Write the archive."""
        path, weights = store / "images.mar", store / "model.pt"
        torch.jit.script(self.network).save(str(weights))
        model = {"modelName": self.name, "modelVersion": "1.0", "handler": "base_handler"}
        model |= {"serializedFile": weights.name, "configFile": "model-config.yaml"}
        manifest = {"runtime": "python", "archiverVersion": "0.12.0", "model": model}
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
            archive.writestr("model-config.yaml", json.dumps(self.config))  # JSON is YAML
            archive.write(weights, weights.name)
        weights.unlink()
        return path.name


def main() -> int:
    """Measure, and print a line for each way to compute."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--connections", type=int, default=128)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--size", type=int, default=224, help="width and height of an image")
    parser.add_argument("--width", type=int, default=64, help="channels of the network's first layer")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; --device cpu shows what would be measured", file=sys.stderr)
        return 1
    net = network(options.width)
    for way in WAYS:
        try:
            alone = _alone(net, way, options)
            served, busy = _served(net, way, options)
        except (LoadFailed, ServerFailed, launchers.NotInstalled) as error:
            print(error, file=sys.stderr)
            return 1
        label = ", ".join(f"{key} {str(value).lower()}" for key, value in way.items()) or "FP32"
        used = f"{busy:.0f} %" if busy is not None else "unknown"
        print(f"{label}: torch {alone:,.0f}, served {served:,.0f} images/s, {served / alone:.0%}, GPU busy {used}")
    return 0


def _alone(net: torch.nn.Module, way: dict[str, Any], options: argparse.Namespace) -> float:
    device = torch.device(options.device)
    computing = Computing.of(way, device)
    model = computing.prepared(torch.jit.script(net).to(device))
    batch = torch.rand(options.batch, 3, options.size, options.size, device=device)
    for _ in range(WARM_UP_CALLS):
        computing.run(model, batch).cpu()
    started, images = time.perf_counter(), 0
    while time.perf_counter() - started < options.seconds:
        computing.run(model, batch).cpu()
        images += options.batch
    return images / (time.perf_counter() - started)


def _served(net: torch.nn.Module, way: dict[str, Any], options: argparse.Namespace) -> tuple[float, float | None]:
    """Return images per second and the median utilization of the busiest GPU, None where it is not known."""
    shape = [3, options.size, options.size]
    config = {
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": options.batch,
        "maxBatchDelay": 5,
        "jobQueueSize": 2 * options.connections,
        "deviceType": "gpu" if options.device == "cuda" else "cpu",
        "warmup": [{"inputs": [{"name": "image", "datatype": "FP32", "shape": shape}], "calls": WARM_UP_CALLS}],
        **way,
    }
    size = 4 * shape[0] * shape[1] * shape[2]
    tensor = {"name": "image", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    body, headers = head + bytes(size), {"Inference-Header-Content-Length": str(len(head))}
    probe = Probe(_PATH, body, lambda answer: len(answer) > 4 * CLASSES, headers)
    load = HttpLoad(options.connections, _PATH, body, headers)
    with Server(launchers.this_server(sys.executable), ImageModel(net, config, probe)) as server:
        load.run(server, 1)
        with _utilization() as samples:
            result = load.run(server, options.seconds)
    return result.requests_per_second, statistics.median(samples) if samples else None


@contextmanager
def _utilization() -> Iterator[list[float]]:
    """Sample the utilization of the busiest GPU meanwhile."""
    samples: list[float] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(1 / SAMPLES_PER_SECOND):
            known = [usage.utilization for usage in read_usage() if usage.utilization is not None]
            if known:
                samples.append(max(known))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield samples
    finally:
        over.set()
        sampler.join()


if __name__ == "__main__":
    sys.exit(main())
