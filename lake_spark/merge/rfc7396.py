"""RFC 7396, JSON Merge Patch, in place."""

from __future__ import annotations

from typing import Any


def merge_patch(target: Any, patch: Any) -> Any:
    """The target with the merge patch applied. Changes the target and takes over parts of the patch."""
    if type(patch) is not dict:
        return patch
    if type(target) is not dict:
        target = {}
    node, changes = target, patch
    todo: list[tuple[Any, Any]] = []
    while True:
        for key, value in changes.items():
            if value is None:
                node.pop(key, None)
            elif type(value) is dict:
                child = node.get(key)
                if type(child) is not dict:
                    child = node[key] = {}
                todo.append((child, value))
            else:
                node[key] = value
        if not todo:
            return target
        node, changes = todo.pop()
