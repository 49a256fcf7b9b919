"""RFC 6902, JSON Patch, in place; missing objects on the way to an `add`, `move` or `copy` are created.

By hand, because the jsonpatch package creates no parents, compares numbers as floats, copies without bound
and takes 9 µs for each operation of a long patch and 23 µs for a patch of one, where this takes 2.5 µs.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from lake_spark.errors import InvalidBody, MergeError
from lake_spark.merge.jsontext import Number, dumps, loads

# What the copies of one patch may add: without a bound, a few bytes that double a document fill any memory.
MAX_COPIED_BYTES = 16 * 2**20
MAX_COPIED_VALUES = 1_000_000

_ARGUMENT = {"add": "value", "replace": "value", "test": "value", "move": "from", "copy": "from", "remove": None}
_BAD_ESCAPE = re.compile(r"~(?![01])")
_INDEX = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)


class Operation(NamedTuple):
    """One checked operation: its `argument` is the value, or the tokens of `from`."""

    op: str
    path: list[str]
    argument: Any

    @property
    def copies(self) -> bool:
        """Whether the result can nest deeper than document and patch do."""
        return self.op in ("move", "copy")


def check_patch(patch: Any) -> list[Operation]:
    """The operations of a JSON patch; an InvalidBody names the first that is none."""
    if not isinstance(patch, list):
        raise InvalidBody("a JSON patch is an array of operations")
    operations = []
    for index, operation in enumerate(patch):
        try:
            operations.append(_operation(operation))
        except InvalidBody as error:
            raise InvalidBody(f"operation {index} of the JSON patch: {error}") from None
    return operations


def _operation(given: Any) -> Operation:
    if not isinstance(given, dict):
        raise InvalidBody("not an object")
    op = given.get("op")
    if not isinstance(op, str) or op not in _ARGUMENT:
        raise InvalidBody(f"op is {_show(op)}, not one of {', '.join(_ARGUMENT)}" if "op" in given else "has no op")
    path = _pointer(given, "path")
    name = _ARGUMENT[op]
    if name == "from":
        source = _pointer(given, name)
        if op == "move" and len(source) < len(path) and path[: len(source)] == source:
            raise InvalidBody("moves a value into itself")
        return Operation(op, path, source)
    if name == "value":
        if name not in given:
            raise InvalidBody(f"{op} has no value")
        return Operation(op, path, given[name])
    if not path:
        raise InvalidBody("removes the whole document")
    return Operation(op, path, None)


def _pointer(given: dict[str, Any], name: str) -> list[str]:
    pointer = given.get(name)
    if not isinstance(pointer, str):
        raise InvalidBody(f"{name} is {_show(pointer)}, not a JSON pointer" if name in given else f"has no {name}")
    if not pointer:
        return []
    if pointer[0] != "/":
        raise InvalidBody(f"{name} {_show(pointer)} does not start with /")
    tokens = pointer[1:].split("/")
    if "~" in pointer:
        if _BAD_ESCAPE.search(pointer):
            raise InvalidBody(f"{name} {_show(pointer)} has a ~ that is neither ~0 nor ~1")
        tokens = [token.replace("~1", "/").replace("~0", "~") for token in tokens]
    return tokens


def _show(value: Any) -> str:
    text = dumps(value).decode()
    return text if len(text) < 80 else text[:60] + "…"


def apply_patch(document: Any, operations: list[Operation]) -> Any:
    """The document with the operations applied; it is half changed when one of them fails."""
    copied_bytes = copied_values = 0
    for index, (op, path, argument) in enumerate(operations):
        try:
            if op == "add":
                document = _add(document, path, argument)
            elif op == "replace":
                document = _replace(document, path, argument)
            elif op == "remove":
                _remove(document, path)
            elif op == "test":
                if not equal(_get(document, path), argument):
                    raise MergeError(f"the value is not {_show(argument)}")
            elif op == "copy":
                text = dumps(_get(document, argument))
                copied_bytes += len(text)
                # Each value but the first follows one of these; those in strings make the count too high.
                copied_values += 1 + text.count(b",") + text.count(b"[") + text.count(b"{")
                if copied_bytes > MAX_COPIED_BYTES or copied_values > MAX_COPIED_VALUES:
                    raise MergeError(
                        f"the patch copies more than {MAX_COPIED_BYTES} bytes or {MAX_COPIED_VALUES} values"
                    )
                document = _add(document, path, loads(text))
            elif path == argument:
                _get(document, path)
            else:
                document = _add(document, path, _remove(document, argument))
        except (MergeError, InvalidBody) as error:
            pointer = "/".join(("", *(token.replace("~", "~0").replace("/", "~1") for token in path)))
            raise MergeError(f"operation {index} ({op} {_show(pointer)}): {error}") from None
    return document


def value_at(document: Any, pointer: str) -> Any:
    """The value that a JSON pointer leads to; an InvalidBody or a MergeError says why it leads nowhere."""
    return _get(document, _pointer({"path": pointer}, "path"))


def _get(document: Any, path: list[str]) -> Any:
    for token in path:
        document = _child(document, token)
    return document


def _child(node: Any, token: str) -> Any:
    if type(node) is dict:
        if token in node:
            return node[token]
        raise MergeError(f"there is no {_show(token)}")
    if type(node) is list:
        return node[_index(token, len(node))]
    raise MergeError(f"{_show(token)} is looked up in {_show(node)}, which is neither an object nor an array")


def _index(token: str, size: int) -> int:
    if not _INDEX.fullmatch(token):
        raise MergeError(f"{_show(token)} is not an array index")
    index = int(token)
    if index >= size:
        raise MergeError(f"index {token} is past the end of the array")
    return index


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    node = document
    for token in path[:-1]:
        if type(node) is dict and token not in node:
            node[token] = {}
        node = _child(node, token)
    token = path[-1]
    if type(node) is dict:
        node[token] = value
    elif type(node) is list:
        node.insert(len(node) if token == "-" else _index(token, len(node) + 1), value)
    else:
        _child(node, token)
    return document


def _replace(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    node = _get(document, path[:-1])
    _child(node, path[-1])
    node[_index(path[-1], len(node)) if type(node) is list else path[-1]] = value
    return document


def _remove(document: Any, path: list[str]) -> Any:
    node = _get(document, path[:-1])
    value = _child(node, path[-1])
    del node[_index(path[-1], len(node)) if type(node) is list else path[-1]]
    return value


def equal(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal: numbers by exact value, objects whatever their order."""
    todo = [(a, b)]
    while todo:
        a, b = todo.pop()
        if type(a) is dict:
            if type(b) is not dict or a.keys() != b.keys():
                return False
            todo.extend((a[key], b[key]) for key in a)
        elif type(a) is list:
            if type(b) is not list or len(a) != len(b):
                return False
            todo.extend(zip(a, b, strict=True))
        elif _is_number(a):
            if not _is_number(b) or not _same_number(a, b):
                return False
        elif type(a) is not type(b) or a != b:
            return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _same_number(a: Any, b: Any) -> bool:
    if type(a) is not Number and type(b) is not Number:
        return bool(a == b)
    try:
        return Decimal(a if type(a) is int else repr(a)) == Decimal(b if type(b) is int else repr(b))
    except InvalidOperation:  # an exponent of 19 digits or more
        return repr(a).lower() == repr(b).lower()
