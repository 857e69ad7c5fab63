"""`torchserve-py store`: finds and repairs what is damaged in a store of sequences, and moves and forks sequences."""

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from torchserve_py.base.terminal import tell, visible
from torchserve_py.plugins import stores
from ts.sequences.steps.record import Damaged, unpack_head
from ts.sequences.steps.stores.earlier_step import NoStateThere
from ts.sequences.steps.stores.maintenance import Examined, Maintenance, StoredSequence
from ts.sequences.steps.stores.portable import read_sequences, write_sequences
from ts.sequences.steps.stores.sequence_fork import fork
from ts.sequences.steps.stores.store import StoreError

_DAMAGE: Final = 1
_FAILED: Final = 2
_STREAM: Final = "-"
_EPILOG: Final = """\
check    lists what is damaged; the exit status is 1 if anything is
repair   drops what cannot be read and keeps the rest; a sequence without a readable head is over
export   writes the sequences that can be read to FILE ("-" for the standard output)
import   adds the sequences in FILE to the store, which may be of another kind
fork     copies a sequence under the id NEW; both go on by themselves, and the copy has a token of its own

All of it works while servers use the store. Move a sequence that a server holds after that server has stopped."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="torchserve-py store",
        description="Check, repair, export, import or fork the sequences in a store.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("act", choices=tuple(_ACTS), help="what to do")
    parser.add_argument("store", metavar="STORE", help="the file of a file store, or the URL of a Redis")
    parser.add_argument("file", metavar="FILE", nargs="?", help="the file to export to or to import from")
    parser.add_argument("--model", help="export only the sequences of this model; the model of the sequence to fork")
    parser.add_argument("--sequence", metavar="ID", help="the sequence to fork; export only this one, of --model")
    parser.add_argument("--as", dest="new_id", metavar="NEW", help="the id of the fork")
    parser.add_argument(
        "--step", type=int, metavar="N", help="fork the sequence as it was after this step, not the last one"
    )
    parser.add_argument(
        "--replace", action="store_true", help="let an import overwrite sequences that are in the store"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    arguments = parser()
    given = arguments.parse_args(argv)
    if (given.file is None) == (given.act in {"export", "import"}):
        arguments.error(f"{given.act} takes {'a' if given.file is None else 'no'} FILE")
    problem = _contradiction(given)
    if problem:
        arguments.error(problem)
    try:
        with contextlib.closing(_opened(given.store, create=given.act == "import")) as store:
            return _ACTS[given.act](store, given)
    except (StoreError, Damaged, OSError) as error:
        tell(f"torchserve-py store {given.act}: {error}", to_stderr=True)
        return _FAILED


def _contradiction(given: argparse.Namespace) -> str:
    """Return what is wrong with the options for a sequence, "" if nothing is."""
    if given.act == "fork":
        wanted = {"--model": given.model, "--sequence": given.sequence, "--as": given.new_id}
        missing = [name for name, value in wanted.items() if not value]
        return f"fork takes {', '.join(missing)} too" if missing else ""
    if given.new_id is not None or given.step is not None:
        return "--as and --step are for fork"
    if given.sequence is not None and (given.act != "export" or given.model is None):
        return "--sequence is for fork, and for export together with --model"
    return ""


def _opened(place: str, *, create: bool) -> Maintenance:
    """Return the store at a path or a URL. Raises StoreError: it cannot be used."""
    for offer in stores().values():
        module = importlib.import_module(offer.module)
        if module.keeps(place):
            store: Maintenance = module.open_maintenance(place, create=create)
            return store
    raise StoreError(f"{place!r} is no path or URL of a store")


def _check(store: Maintenance, _: argparse.Namespace) -> int:
    is_open = is_over = damaged = 0
    for model, sequence_id, problems, sequence in store.examine():
        for problem in problems:
            tell(f"{visible(model)} {sequence_id!r}: {visible(problem)}")
        damaged += bool(problems)
        if sequence is not None:
            is_open += not sequence.closed
            is_over += bool(sequence.closed)
    others = store.other_problems()
    for problem in others:
        tell(visible(problem))
    tell(f"sequences: {is_open} open, {is_over} over; damaged: {damaged}; other problems: {len(others)}")
    return _DAMAGE if damaged or others else 0


def _repair(store: Maintenance, _: argparse.Namespace) -> int:
    count = 0
    for model, sequence_id, what in store.repair():
        tell(f"{visible(model)} {sequence_id!r}: {visible(what)}")
        count += 1
    tell(f"repaired: {count}")
    return 0


def _export(store: Maintenance, given: argparse.Namespace) -> int:
    unreadable = 0

    def readable() -> Iterator[StoredSequence]:
        nonlocal unreadable
        for model, sequence_id, problems, sequence in _chosen(store, given):
            if given.model not in {None, model}:
                continue
            for problem in problems:
                tell(f"{visible(model)} {sequence_id!r}: {visible(problem)}", to_stderr=True)
            if sequence is None:
                unreadable += 1
            else:
                yield sequence

    with _new_file(given.file) as out:
        count = write_sequences(readable(), out)
    tell(f"exported: {count}; not exported, since they cannot be read: {unreadable}", to_stderr=True)
    return _DAMAGE if unreadable else 0


def _chosen(store: Maintenance, given: argparse.Namespace) -> Iterator[Examined]:
    if given.sequence is None:
        yield from store.examine()
    else:
        yield _the_one(store, given)


def _the_one(store: Maintenance, given: argparse.Namespace) -> Examined:
    examined = store.examine_one(given.model, given.sequence)
    if examined is None:
        raise StoreError(f"the store has no sequence {given.sequence!r} of model {given.model!r}")
    return examined


def _fork(store: Maintenance, given: argparse.Namespace) -> int:
    examined = _the_one(store, given)
    if examined.sequence is None:
        raise Damaged(f"{given.model} {given.sequence!r} cannot be read: {'; '.join(examined.problems)}")
    try:
        made = fork(examined.sequence, given.new_id, given.step)
    except NoStateThere as error:
        raise StoreError(f"{given.model} {given.sequence!r}: {error}") from error
    if not store.write(made, replace=False):
        raise StoreError(f"{given.model} {given.new_id!r} is in the store; choose an id that was not used before")
    head = unpack_head(made.head)
    tell(f"forked: {given.new_id!r} goes on after step {head.last}; its token is {visible(head.token)}")
    return 0


@contextlib.contextmanager
def _new_file(name: str) -> Iterator[BinaryIO]:
    """Open a file that does not exist yet, which is there when all of it has been written."""
    if name == _STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path, part = Path(name), Path(f"{name}.part")
    if path.exists():
        raise FileExistsError(f"{name} exists; name a file that does not")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as out:
            yield out
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def _import(store: Maintenance, given: argparse.Namespace) -> int:
    imported = refused = 0
    with contextlib.ExitStack() as stack:
        file = sys.stdin.buffer if given.file == _STREAM else stack.enter_context(Path(given.file).open("rb"))
        for sequence in read_sequences(file):
            if isinstance(sequence, Damaged):
                tell(visible(sequence), to_stderr=True)
                refused += 1
            elif store.write(sequence, replace=given.replace):
                imported += 1
            else:
                tell(
                    f"{visible(sequence.model)} {sequence.sequence_id!r} is in the store; --replace overwrites it",
                    to_stderr=True,
                )
                refused += 1
    tell(f"imported: {imported}; not imported: {refused}")
    return _DAMAGE if refused else 0


_ACTS: Final[dict[str, Callable[[Maintenance, argparse.Namespace], int]]] = {
    "check": _check,
    "repair": _repair,
    "export": _export,
    "import": _import,
    "fork": _fork,
}
