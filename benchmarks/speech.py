"""What batching does for handlers/voice_activity: draws docs/speech.svg, prints what a sequence takes of memory.

    python -m benchmarks.speech [--picture docs/speech.svg]

The handler runs in this process; time is what it takes of one core, so other programs hardly matter.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from benchmarks.benchmark_models import ROOT

SIZES = (1, 2, 4, 8, 16, 32, 64)
#: A step: one window of the network, 32 ms of sound.
STEP = random.Random(1).randbytes(1024)
SECONDS = 2.0
SEQUENCES = 20_000


def load() -> Any:
    """Return the handler, initialized."""
    path = ROOT / "handlers" / "voice_activity" / "voice_activity_handler.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    handler = module.VoiceActivityHandler()
    handler.initialize(SimpleNamespace(system_properties={}, model_yaml_config={"maxNumSequence": SEQUENCES}))
    return handler


def steps_per_second(handler: Any, size: int) -> float:
    """Return how many steps one core makes in a second, in batches of one size."""
    context = SimpleNamespace(get_sequence_id=str)
    rows = [{"body": bytearray(STEP)} for _ in range(size)]
    handler.handle(rows, context)
    began, steps = time.process_time(), 0
    while (took := time.process_time() - began) < SECONDS:
        handler.handle(rows, context)
        steps += size
    return steps / took


def bytes_per_sequence(handler: Any) -> float:
    """Return what the worker's memory grows by for each sequence."""
    for sequence_id in list(handler.sounds):
        del handler.sounds[sequence_id]
    gc.collect()
    before = psutil.Process().memory_info().rss
    for first in range(0, SEQUENCES, 32):
        context = SimpleNamespace(get_sequence_id=lambda idx, first=first: f"live-{first + idx:040}")
        handler.handle([{"body": bytearray(STEP)}] * min(32, SEQUENCES - first), context)
    return (psutil.Process().memory_info().rss - before) / SEQUENCES


def draw(rates: Sequence[float], picture: Path) -> None:
    """Draw steps per second by batch size."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "speech", "font.family": "sans-serif"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.6, 3.4), layout="constrained")
    bars = axes.bar([str(size) for size in SIZES], rates, color="#2f7d5b", width=0.6)
    axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=3)
    axes.set(xlabel="sequences in a batch", title="voice_activity: steps (32 ms of sound each) per second, on one core")
    axes.set_ylim(0, 1.12 * max(rates))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, metadata={"Date": None})


def main() -> int:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "speech.svg")
    options = parser.parse_args()
    handler = load()
    rates = [steps_per_second(handler, size) for size in SIZES]
    for size, rate in zip(SIZES, rates, strict=True):
        print(f"batches of {size:2}: {rate:8,.0f} steps/s")
    print(f"memory per sequence: {bytes_per_sequence(handler):,.0f} bytes")
    draw(rates, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
