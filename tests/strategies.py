"""Hypothesis strategies for the lake's values."""

from __future__ import annotations

import string
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from lake_spark.merge import Number

# A busy machine is no failure.
settings.register_profile("lake", deadline=None)
settings.load_profile("lake")

keys = st.one_of(st.sampled_from(["a", "b", "c", "a.b", "", "a/b", "m~n", "0", "-", "é"]), st.text(max_size=5))

big_integers = st.integers(min_value=-(10**40), max_value=10**40)

# Numbers as text, of which few survive as a float: 1.50, 1e2, -0, 1E400.
number_texts = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "-"]),
        st.one_of(st.just("0"), st.from_regex(r"[1-9][0-9]{0,30}", fullmatch=True)),
        st.one_of(st.just(""), st.from_regex(r"\.[0-9]{1,25}", fullmatch=True)),
        st.one_of(st.just(""), st.from_regex(r"[eE][+-]?[0-9]{1,3}", fullmatch=True)),
    ),
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    big_integers,
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["1.50", "1e2", "0.1000000000000000055", "1E400", "-0"]).map(Number),
    st.text(max_size=8),
)

json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)

documents = st.dictionaries(keys, json_values, max_size=5)

merge_patches = st.one_of(documents, json_values)


def _locations(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every pointer into a document, with what it points to."""
    found = [(path, value)]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        found += _locations(child, f"{path}/{escape(str(key))}")
    return found


def escape(key: str) -> str:
    """A key as a token of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


@st.composite
def json_patch_operations(draw: st.DrawFn, document: Any) -> dict[str, Any]:
    """One operation that applies to the document."""
    locations = _locations(document)
    containers = [(path, value) for path, value in locations if isinstance(value, (dict, list))]
    kinds = ["replace", "test"] + ["add", "copy"] * bool(containers) + ["remove", "move"] * (len(locations) > 1)
    op = draw(st.sampled_from(kinds))
    if op in ("replace", "test"):
        path, value = draw(st.sampled_from(locations))
        return {"op": op, "path": path, "value": value if op == "test" else draw(json_values)}
    if op == "remove":
        return {"op": op, "path": draw(st.sampled_from(locations[1:]))[0]}
    source = ""
    if op == "move":
        source = draw(st.sampled_from(locations[1:]))[0]
        # Objects only: what is removed from an array shifts the indexes of the targets behind it.
        containers = [
            (path, value)
            for path, value in containers
            if isinstance(value, dict) and not _shifted(document, source, path)
        ]
        if not containers:
            return {"op": "remove", "path": source}
    elif op == "copy":
        source = draw(st.sampled_from(locations))[0]
    parent, container = draw(st.sampled_from(containers))
    if isinstance(container, dict):
        token = escape(draw(keys))
    else:
        token = draw(st.sampled_from([*map(str, range(len(container) + 1)), "-"]))
    path = f"{parent}/{token}"
    if op == "add":
        return {"op": op, "path": path, "value": draw(json_values)}
    if op == "move" and path.startswith(source + "/"):
        return {"op": "remove", "path": source}
    return {"op": op, "from": source, "path": path}


def _shifted(document: Any, source: str, target: str) -> bool:
    """Whether the target lies in the source, or in an array from which the source is taken."""
    if target == source or target.startswith(source + "/"):
        return True
    parent = source.rpartition("/")[0]
    if not target.startswith(parent + "/"):
        return False
    return isinstance(dict(_locations(document))[parent], list)


_first = string.ascii_letters + "_$"
field_names = st.builds(
    str.__add__, st.sampled_from(_first), st.text(alphabet=_first + string.digits + ".", max_size=6)
)
field_paths = st.one_of(
    st.just("/"), st.lists(field_names, min_size=1, max_size=5).map(lambda names: "/" + "/".join(names))
)

catalogs = st.one_of(
    st.text(alphabet="abc019-_/.", min_size=1, max_size=20),
    st.text(alphabet="ABC019-_/.", min_size=1, max_size=20),
    st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60),
)
