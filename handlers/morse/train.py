"""Trains the recogniser on Morse code that it makes up, and writes its weights: half a minute on one core.

python handlers/morse/train.py [FILE] [--steps N]      FILE: default weights.pt beside this script
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
from morse_code import keyed  # type: ignore[import-not-found]
from morse_model import CHARACTERS, FRAME, MorseRecogniser  # type: ignore[import-not-found]  # beside this script

STEPS, BATCH, FRAMES = 300, 16, 224
#: Frames that say which character has just ended.
_SAYING = 3


def example(random: np.random.Generator) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the frames of a sound with noise, and the number of the character that each frame says."""
    letters = random.choice(CHARACTERS[2:], random.integers(1, 30))
    text = "".join(f"{each} " if random.random() < 0.2 else str(each) for each in letters)
    made = keyed(text, random.uniform(0.058, 0.062), random.uniform(400, 1000), random)
    sound = random.standard_normal(FRAMES * FRAME, dtype=np.float32) * np.float32(random.uniform(0.001, 0.1))
    heard = made.sound[: len(sound)]
    sound[: len(heard)] += heard * np.float32(random.uniform(0.2, 0.9))
    says = np.zeros(FRAMES, dtype=np.int64)
    for end, character in made.ends:
        first = end // FRAME
        says[first : first + _SAYING] = CHARACTERS.index(character)
    return sound.reshape(FRAMES, FRAME), says


def train(steps: int = STEPS, seed: int = 0) -> MorseRecogniser:
    """Return a trained model; of one seed it is always the same on the same machine."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    model = MorseRecogniser()
    dynamics = [each for name, each in model.named_parameters() if name.endswith(("log_step", "log_decay", "turn"))]
    others = [each for name, each in model.named_parameters() if not name.endswith(("log_step", "log_decay", "turn"))]
    optimizer = torch.optim.AdamW([{"params": dynamics, "weight_decay": 0.0}, {"params": others}], weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [4e-3, 1e-2], total_steps=steps)
    weight = torch.ones(len(CHARACTERS))
    weight[0] = 0.3  # most frames say nothing
    for _ in range(steps):
        sounds, says = zip(*(example(random) for _ in range(BATCH)), strict=True)
        scores = model.whole(torch.from_numpy(np.stack(sounds)))
        loss = functional.cross_entropy(scores.flatten(0, 1), torch.from_numpy(np.stack(says)).flatten(), weight)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).with_name("weights.pt"))
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are too small to be shared out
    torch.save(train(options.steps).state_dict(), options.file)
    print(f"Wrote {options.file}")


if __name__ == "__main__":
    main()
