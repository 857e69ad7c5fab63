"""Reads a YAML file with one mapping, without trust in its author.

PyYAML's C composer recurses without a limit and merge keys multiply, so a small file could take the whole server down.
The limits on size, nesting and expansion are checked before anything is built from the text.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from ts.protocol.regular_files import read_regular

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]

#: Bytes.
MAX_SIZE = 1 << 20
#: Mappings and lists inside each other.
MAX_DEPTH = 64
#: Values, with every alias counted as often as it is used.
MAX_NODES = 100_000
#: Keys that occur twice, of which there are messages.
_MOST_REPEATED = 20
#: Characters of a key, or of a key above it, in such a message.
_MOST_OF_KEY = 60

#: Held while a file is parsed: each thread that parses takes as much of the interpreter as the event loop does, so
#: several would keep it waiting.
_one_at_a_time = threading.Lock()


class UnreadableYaml(ValueError):
    """The file is not YAML, not a mapping, or exceeds a limit; the text names the problem and the line."""


@dataclass(frozen=True, slots=True)
class YamlMapping:
    """`values` as `yaml.safe_load` gives them, and the line (from 1) on which each top-level key stands.

    `repeated` has a message for each key that occurs twice, where that is allowed; the last value counts.
    """

    values: Mapping[Any, Any]
    lines: Mapping[str, int]
    repeated: tuple[str, ...] = ()


def read_yaml_mapping(path: Path, *, last_wins: bool = False) -> YamlMapping:
    """Return the mapping in a file, an empty one without a document; with ``last_wins`` a key may occur twice.

    Raises UnreadableYaml: the file holds no such mapping; OSError: it cannot be read.
    """
    try:
        text = read_regular(path, MAX_SIZE)
    except ValueError as error:
        raise UnreadableYaml(str(error)) from error
    return parse_yaml_mapping(text, last_wins=last_wins)


def parse_yaml_mapping(text: bytes, *, last_wins: bool = False) -> YamlMapping:
    """Parse one YAML document; `last_wins` as in `read_yaml_mapping`. Raises UnreadableYaml."""
    with _one_at_a_time:
        return _parsed(text, last_wins)


def _parsed(text: bytes, last_wins: bool) -> YamlMapping:
    try:
        _check_size(text)
        loader = SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"):
                return YamlMapping({}, {})
            if not isinstance(node, yaml.MappingNode):
                raise UnreadableYaml(f"{_place(node)}the file must hold 'key: value' lines, not a {_kind(node)}")
            _count_nodes(node, {})
            repeated = tuple(islice(_repeated(node, ()), _MOST_REPEATED))
            if repeated and not last_wins:
                raise UnreadableYaml(f"{repeated[0]}; keep one")
            return YamlMapping(loader.construct_document(node), _lines(node), repeated)
        finally:
            loader.dispose()
    except UnreadableYaml:
        raise
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number or a date that Python cannot hold
        raise UnreadableYaml(f"not valid YAML: {' '.join(str(error).split())}") from error


def _check_size(text: bytes) -> None:
    """Check depth and number of values before the composer uses a kilobyte for each value."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, SafeLoader)):
        if number > 2 * MAX_NODES:  # a list or a mapping is two events
            raise UnreadableYaml(f"{_place(event)}more than {MAX_NODES} values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise UnreadableYaml(f"{_place(event)}mappings and lists are nested more than {MAX_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _count_nodes(node: yaml.Node, counted: dict[int, int]) -> int:
    """Return the number of nodes below `node` after its aliases are expanded."""
    known = counted.get(id(node))
    if known is not None:
        if known == 0:
            raise UnreadableYaml(f"{_place(node)}an alias makes this value contain itself")
        return known
    counted[id(node)] = 0
    children = [child for pair in node.value for child in pair] if isinstance(node, yaml.MappingNode) else node.value
    count = 1 if isinstance(node, yaml.ScalarNode) else 1 + sum(_count_nodes(child, counted) for child in children)
    if count > MAX_NODES:
        raise UnreadableYaml(f"{_place(node)}more than {MAX_NODES} values once the aliases are expanded")
    counted[id(node)] = count
    return count


def _lines(node: yaml.MappingNode) -> dict[str, int]:
    """Return the line of each key; of one that occurs twice, that of the last."""
    return {key.value: _line(key) for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"}


def _repeated(node: yaml.Node, above: tuple[str | int, ...]) -> Iterator[str]:
    """Yield a message for each key, at any depth, that its mapping already has; ``above`` is where the mapping is."""
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            if not isinstance(item, yaml.ScalarNode):
                yield from _repeated(item, (*above, number))
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in lines:
                    yield f"{_place(key)}{_path(*above, key.value)} is already given on line {lines[key.value]}"
                lines[key.value] = _line(key)
                if not isinstance(value, yaml.ScalarNode):
                    yield from _repeated(value, (*above, key.value))


def _path(*steps: str | int) -> str:
    """Return the steps to a value as messages name it, such as ``keys[0].name``."""
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each[:_MOST_OF_KEY]}" for each in steps)[1:]


def _line(place: yaml.Node | yaml.Event) -> int:
    return place.start_mark.line + 1 if place.start_mark else 0


def _place(place: yaml.Node | yaml.Event) -> str:
    return f"line {_line(place)}: "


def _kind(node: yaml.Node) -> str:
    return "list" if isinstance(node, yaml.SequenceNode) else "single value"
