"""The fold over a log: a base document and the deltas after it, merged into one document."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lake_spark.errors import InvalidBody, MergeError
from lake_spark.merge.jsontext import MAX_DEPTH, check_depth, dumps, loads, too_deep
from lake_spark.merge.rfc6902 import apply_patch, check_patch
from lake_spark.merge.rfc7396 import merge_patch
from lake_spark.model import MergeType

_REPLACE, _RFC7396, _RFC6902 = MergeType.REPLACE, MergeType.RFC7396, MergeType.RFC6902
_UNREAD: Any = object()


def check_body(merge_type: int, data: bytes) -> Any:
    """The parsed body of a delta, or an InvalidBody that says why it could never be merged."""
    if merge_type not in (_REPLACE, _RFC7396, _RFC6902):
        raise InvalidBody(f"there is no merge type {merge_type!r}")
    value = loads(data)
    check_depth(data, value)
    if merge_type == _RFC6902:
        check_patch(value)
    return value


class Fold:
    """A document being merged: a base, then deltas in their order.

    The base is parsed when first needed, and never if a Replace of the whole document follows. After a
    MergeError the document is gone.
    """

    __slots__ = ("_maybe_deep", "_origin", "_text", "_untouched", "_value")

    def __init__(self, base: bytes | None = None) -> None:
        self._text: bytes | None = b"{}" if base is None else base
        self._origin: object = None
        self._value: Any = _UNREAD
        self._untouched = True
        self._maybe_deep = False

    @property
    def value(self) -> Any:
        """The document as it stands. It belongs to the fold: the next delta changes it."""
        if self._value is _UNREAD:
            if self._text is None:
                raise MergeError("a delta before this one could not be applied")
            try:
                self._value = loads(self._text)
            except InvalidBody as error:
                raise _failure("the document before the deltas", self._origin, error) from None
        return self._value

    def apply(self, merge_type: int, path: str, body: bytes, origin: object = None) -> None:
        """Apply one delta. `origin` (its TsSeq, say) is what an error calls it.

        A bad Replace of the whole document is noticed only when its value is needed, if ever: the error
        names its origin even when a later delta meets it.
        """
        if merge_type == _REPLACE and path == "/":
            self._text, self._origin, self._value = body, origin, _UNREAD
            self._untouched = self._maybe_deep = False
            return
        document = self._value
        if document is _UNREAD:
            document = self.value
        try:
            self._value = self._changed(document, merge_type, path, loads(body), len(body))
        except (InvalidBody, MergeError, RecursionError) as error:
            raise self._gone(origin, error) from None

    def apply_values(
        self, deltas: Iterable[tuple[int, str, Any]], longest: int, origin: Callable[[int], object]
    ) -> None:
        """Apply deltas whose bodies are parsed already; none of their bodies is longer than `longest` bytes.

        The values become parts of the document. `origin(n)` is what an error calls the n-th of them.
        """
        place = -1
        document = self._value
        try:
            for merge_type, path, value in deltas:
                place += 1
                if merge_type == _REPLACE and path == "/":
                    document, self._maybe_deep, self._untouched = value, False, False
                    continue
                if document is _UNREAD:
                    document = self.value
                if merge_type == _RFC7396 and path == "/":
                    document = merge_patch(document, value)
                    self._untouched = False
                else:
                    document = self._changed(document, merge_type, path, value, longest)
        except (InvalidBody, MergeError, RecursionError) as error:
            raise self._gone(origin(place), error) from None
        self._value = document

    def _changed(self, document: Any, merge_type: int, path: str, value: Any, size: int) -> Any:
        """The document with one delta applied, whose body has that size at most."""
        change: Callable[[Any, Any], Any]
        # A level takes at least a byte, of path or body; but what is copied or moved brings its own.
        deep = len(path) + size > MAX_DEPTH
        if merge_type == _RFC7396:
            change = merge_patch
            deep = deep and path != "/"
        elif merge_type == _RFC6902:
            value = check_patch(value)
            if not value:
                return document
            change = apply_patch
            deep = deep or any(operation.copies for operation in value)
        elif merge_type == _REPLACE:
            change = _replace
        else:
            raise MergeError(f"there is no merge type {merge_type!r}")
        self._untouched = False
        self._maybe_deep = self._maybe_deep or deep
        return change(document, value) if path == "/" else _change_at(document, path, change, value)

    def _gone(self, origin: object, error: Exception) -> MergeError:
        self._value, self._text = _UNREAD, None
        return _failure("the delta", origin, error)

    def dump(self) -> bytes:
        """The merged document as JSON; the bytes of the base when nothing was applied to it."""
        if self._untouched and self._text is not None:
            return self._text
        value = self.value
        try:
            if self._maybe_deep and too_deep(value):
                raise InvalidBody(f"nested more than {MAX_DEPTH} deep")
            return dumps(value)
        except InvalidBody as error:
            raise MergeError(f"the merged document cannot be written: {error}") from None


def _failure(what: str, origin: object, error: Exception) -> MergeError:
    reason = f"nested more than {MAX_DEPTH} deep" if isinstance(error, RecursionError) else error
    return MergeError(f"{what if origin is None else origin}: {reason}")


def _replace(_: Any, value: Any) -> Any:
    return value


def _change_at(document: Any, path: str, change: Callable[[Any, Any], Any], patch: Any) -> Any:
    """Change the value at a field path; whatever is missing or no object on the way becomes one."""
    if type(document) is not dict:
        document = {}
    node = document
    *parents, last = path[1:].split("/")
    for key in parents:
        child = node.get(key)
        if type(child) is not dict:
            child = node[key] = {}
        node = child
    node[last] = change(node.get(last, {}), patch)
    return document
