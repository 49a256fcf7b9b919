"""Writes docs/options.md from the table in lake_spark/options.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from lake_spark.options import ENVIRONMENT_PREFIX, BatchOptions, Options, camel_case

TARGET = Path(__file__).parent / "options.md"

_HEAD = """\
# Options

This page is written by `docs/generate.py` from the table in `lake_spark/options.py`. Change the table, not the page.

An option is a keyword of `Lake(...)`. What is not given there comes from the environment, else it has its default.
The camelCase spelling of a name is accepted as well. A name that is not an option gets one warning that names the
nearest one; a value that an option does not take is a `ConfigError`.

The URL of the index Redis, or of an [embedded lake](getting-started.md#in-a-folder), is no option: it is the first
argument of `Lake`, or `LAKE_URL` in the environment. Its query may hold options, as in `?pending=wait`. Where the
bodies are kept is part of the lake's configuration: see [Getting started](getting-started.md#configuration).

"""

_BATCH = """
## Of a Spark job

`spark.read.format("lake")` and `df.write.format("lake")` take all of the above, in camelCase, and these.

"""

_COLUMNS = """\
| option | environment | default | values | meaning |
| --- | --- | --- | --- | --- |
"""


def render() -> str:
    """The page."""
    common = dataclasses.fields(Options)
    batch = [option for option in dataclasses.fields(BatchOptions) if option not in common]
    return _HEAD + _COLUMNS + "".join(map(_row, common)) + _BATCH + _COLUMNS + "".join(map(_row, batch))


def _row(option: dataclasses.Field[Any]) -> str:
    name = option.name if "_" not in option.name else f"{option.name}`, `{camel_case(option.name)}"
    environment = f"`{ENVIRONMENT_PREFIX}{option.name.upper()}`" if option.metadata["environment"] else ""
    meaning = option.metadata["meaning"]
    return f"| `{name}` | {environment} | {_shown(option.default)} | {_values(option)} | {meaning} |\n"


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int) and default >= 1 << 20 and default % (1 << 20) == 0:
        return f"`{default}` ({default >> 20} MiB)"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`" if default != "" else "empty"


def _values(option: dataclasses.Field[Any]) -> str:
    if option.metadata["choices"]:
        return ", ".join(f"`{choice}`" for choice in option.metadata["choices"] if choice)
    kind = {str: "text", int: "whole number", float: "number", bool: "true or false"}[type(option.default)]
    least = option.metadata["least"]
    return kind if least is None else f"{kind}, {least:g} or more"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
