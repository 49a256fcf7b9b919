"""The patch between two documents."""

from __future__ import annotations

from typing import Any

import jsonpatch

from lake_spark.errors import InvalidBody, MergeError
from lake_spark.merge.jsontext import canonical, dumps, loads
from lake_spark.merge.rfc6902 import apply_patch, check_patch
from lake_spark.model import MergeType


def diff(before: Any, after: Any, merge_type: int) -> Any:
    """The patch that turns one document into the other: a JSON patch, a merge patch, or a Replace.

    A merge patch cannot set a null: that is an InvalidBody.
    """
    if merge_type == MergeType.RFC6902:
        return _json_patch(before, after)
    if merge_type == MergeType.RFC7396:
        return _merge_patch(before, after, "")
    if merge_type == MergeType.REPLACE:
        return after
    raise InvalidBody(f"there is no merge type {merge_type!r}")


def _json_patch(before: Any, after: Any) -> Any:
    try:
        patch = jsonpatch.JsonPatch.from_diff(before, after, dumps=canonical).patch
        if canonical(apply_patch(loads(dumps(before)), check_patch(loads(dumps(patch))))) == canonical(after):
            return patch
    except (InvalidBody, MergeError, RecursionError):
        pass
    # Where the package fails, on deep documents for one, this is right.
    return [{"op": "replace", "path": "", "value": after}]


def _merge_patch(before: Any, after: Any, path: str) -> Any:
    """By hand: json_merge_patch takes true for equal to 1, and puts removals in random order."""
    if type(after) is not dict:
        if after is None and path:
            raise InvalidBody(f"a merge patch cannot set the null at {path}")
        return after
    old = before if type(before) is dict else {}
    patch: dict[str, Any] = {key: None for key in old if key not in after}
    for key, value in after.items():
        if key not in old or canonical(old[key]) != canonical(value):
            patch[key] = _merge_patch(old.get(key), value, f"{path}/{key}")
    return patch
