"""Fuzzes one target with atheris; see scripts/fuzz.

python -m tests.fuzz.run --list
python -m tests.fuzz.run TARGET SECONDS
"""

import logging
import sys
import tempfile
from pathlib import Path

FINDINGS = Path(__file__).parent / "findings"


def main(arguments: list[str]) -> None:
    """Run until the time is up (exit code 0) or something is found (not 0)."""
    try:
        import atheris
    except ImportError:
        sys.exit("scripts/fuzz needs atheris: pip install atheris")
    with atheris.instrument_imports(include=["torchserve_py", "ts", "python_multipart", "hpack"]):
        from tests.fuzz.targets import TARGETS, remove_workplace
    if arguments == ["--list"]:
        print("\n".join(TARGETS))
        return
    name, seconds = arguments
    target, seeds = TARGETS[name]
    logging.disable()
    found = FINDINGS / name
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ts-corpus-") as corpus:
        for number, seed in enumerate(seeds):
            (Path(corpus) / f"seed-{number}").write_bytes(seed)
        options = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=20", "-print_final_stats=1", "-verbosity=0"]
        atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={found}/", corpus, str(found)], target)
        try:
            atheris.Fuzz()
        finally:
            remove_workplace()


if __name__ == "__main__":
    main(sys.argv[1:])
