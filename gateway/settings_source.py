"""Reads a YAML file, with the line of each of its values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from gateway.settings_document import Document
from gateway.settings_errors import Location, Problem, SettingsError

MAX_FILE_BYTES = 1024 * 1024
_MERGE_TAG = "tag:yaml.org,2002:merge"


def read_yaml(path: Path) -> Document:
    """Read a file. Raises ``SettingsError`` with the line for what is not YAML, and when it cannot be read.

    Nothing of the file's text is repeated: what is misspelt may be a secret.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SettingsError([Problem(str(path), "is larger than 1 MiB", "This cannot be a configuration.")])
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SettingsError([Problem(str(path), "does not exist", "`paceline init` writes one.")]) from None
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise SettingsError(
            [Problem(str(path), f"cannot be read: {reason}", "Check the path and its rights.")]
        ) from None
    except UnicodeDecodeError:
        raise SettingsError([Problem(str(path), "is not text in UTF-8", "Save it as UTF-8.")]) from None
    return parse_yaml(text, path)


def parse_yaml(text: str, path: Path) -> Document:
    """Parse a file's text; see ``read_yaml``."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Document(path=path)
        if repeated := list(_repeated_keys(node)):
            raise SettingsError([_repeated(path, key) for key in repeated])
        lines = dict(_lines(node, ()))
        values = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise SettingsError([_not_yaml(path, error)]) from None
    finally:
        loader.dispose()
    if not isinstance(values, dict):
        problem = Problem(f"{path}:1", "is not a mapping", "A configuration is `name: value` lines, such as `server:`.")
        raise SettingsError([problem])
    return Document(values, lines, path)


def _lines(node: yaml.Node, location: Location, inside: frozenset[int] = frozenset()) -> Iterator[tuple[Location, int]]:
    if id(node) in inside:
        return
    inside |= {id(node)}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield (*location, key.value), key.start_mark.line + 1
                yield from _lines(value, (*location, key.value), inside)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*location, index), item.start_mark.line + 1
            yield from _lines(item, (*location, index), inside)


def _repeated_keys(node: yaml.Node, inside: frozenset[int] = frozenset()) -> Iterator[yaml.ScalarNode]:
    if id(node) in inside:
        return
    inside |= {id(node)}
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE_TAG:
                if key.value in seen:
                    yield key
                seen.add(key.value)
            yield from _repeated_keys(value, inside)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated_keys(item, inside)


def _repeated(path: Path, key: yaml.ScalarNode) -> Problem:
    return Problem(f"{path}:{key.start_mark.line + 1}", f"has {key.value!r} a second time", "Keep one of them.")


def _not_yaml(path: Path, error: yaml.YAMLError) -> Problem:
    where, what = str(path), "is not valid YAML"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        if mark is not None:
            where = f"{path}:{mark.line + 1}"
            what = f"is not valid YAML at column {mark.column + 1}"
    if isinstance(error, yaml.composer.ComposerError | yaml.constructor.ConstructorError):
        return Problem(where, what, "Put a value that begins with * & or ! in quotes.")
    return Problem(where, what, "Check indentation (spaces, never tabs), quotes and the colon before each value.")
