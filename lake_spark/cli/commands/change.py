"""Commands that write: put, patch, files, meta."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from lake_spark.cli.app import CHANGE, Json, Url, app
from lake_spark.cli.commands.show import Catalog
from lake_spark.cli.context import body_of, opened
from lake_spark.cli.output import Output
from lake_spark.errors import NotFound
from lake_spark.model import MergeType

FieldPath = Annotated[str, typer.Option("--path", help="The field to change, such as /profile.")]
Meta = Annotated[str | None, typer.Option("--meta", metavar="OBJECT", help="JSON that is merged into the meta.")]


def _write(
    url: str | None, json: bool, catalog: str, body: bytes, merge: MergeType, path: str, meta: str | None
) -> None:
    out = Output(json)
    with opened(url) as lake:
        given = None if meta is None else body_of(meta, "--meta")
        ts_seq = str(lake.write(catalog, body, path=path, merge=merge, meta=given))
    out.text(ts_seq)
    out.result({"catalog": catalog, "ts_seq": ts_seq})


@app.command(rich_help_panel=CHANGE)
def put(
    catalog: Catalog,
    body: Annotated[
        str | None, typer.Argument(help="JSON; @file: of a file; - or nothing: from standard input.")
    ] = None,
    path: FieldPath = "/",
    meta: Meta = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Set a document, or the field at a path; print the TsSeq."""
    _write(url, json, catalog, body_of(body), MergeType.REPLACE, path, meta)


@app.command(rich_help_panel=CHANGE)
def patch(
    catalog: Catalog,
    body: Annotated[str, typer.Argument(help="A patch; @file: of a file; -: from standard input.", show_default=False)],
    json_patch: Annotated[bool, typer.Option("--json-patch", help="RFC 6902; the default for a list.")] = False,
    merge: Annotated[bool, typer.Option("--merge", help="RFC 7396; the default for all else.")] = False,
    path: FieldPath = "/",
    meta: Meta = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Change a document by a merge patch or a JSON patch; print the TsSeq."""
    if json_patch and merge:
        raise typer.BadParameter("a patch is one of --json-patch and --merge, not both")
    data = body_of(body)
    operations = json_patch or (not merge and data.lstrip().startswith(b"["))
    _write(url, json, catalog, data, MergeType.RFC6902 if operations else MergeType.RFC7396, path, meta)


class FileAction(str, Enum):
    """What `lake files` does with one file."""

    get = "get"
    put = "put"


@app.command(rich_help_panel=CHANGE)
def files(
    catalog: Catalog,
    action: Annotated[FileAction | None, typer.Argument(help="Default: list the files.", show_default=False)] = None,
    path: Annotated[str | None, typer.Argument(metavar="PATH", help="Such as /photos/me.png.")] = None,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="put: what to store; -: standard input.")] = None,
    target: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="get: where to; default: standard output.")
    ] = None,
    meta: Annotated[str | None, typer.Option("--meta", metavar="OBJECT", help="put: meta of the file.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """List the files beside a document; get one, put one."""
    out = Output(json)
    if action and path is None:
        raise typer.BadParameter(f"{action.value} needs the PATH of a file, such as /photos/me.png")
    if action is FileAction.put and path is not None:
        if file is None:
            raise typer.BadParameter("put needs the FILE to store, or - for standard input")
        _put_file(out, url, catalog, path, file, meta)
    elif path is not None:
        if json and target is None:
            raise typer.BadParameter("get --json needs --output: a file is no JSON")
        _get_file(out, url, catalog, path, target)
    else:
        with opened(url) as lake:
            found = lake.files_and_meta(catalog)
        out.table("", ("path", "meta"), [(name, _text(value)) for name, value in found.items()])
        out.result([{"path": name, "meta": value} for name, value in found.items()])


def _put_file(out: Output, url: str | None, catalog: str, path: str, file: str, meta: str | None) -> None:
    data = body_of("-" if file == "-" else f"@{file}", "FILE")
    with opened(url) as lake:
        lake.write_file(catalog, path, data, meta=None if meta is None else body_of(meta, "--meta"))
    out.text(f"{len(data)} bytes")
    out.result({"path": path, "bytes": len(data)})


def _get_file(out: Output, url: str | None, catalog: str, path: str, target: Path | None) -> None:
    with opened(url) as lake:
        data = lake.read_file(catalog, path)
    if target is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    target.write_bytes(data)
    out.note(f"{len(data)} bytes in {target}")
    out.result({"path": path, "bytes": len(data), "file": str(target)})


@app.command(rich_help_panel=CHANGE)
def meta(
    catalog: Catalog,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="Only the value of this key.")] = None,
    change: Annotated[
        str | None,
        typer.Option("--set", metavar="OBJECT", help="Merge this JSON object into it first; null removes a key."),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Print the meta of a catalog, or change it."""
    from lake_spark.merge import dumps

    out = Output(json)
    with opened(url) as lake:
        if change is not None:
            # An empty JSON patch writes nothing but its meta.
            lake.write(catalog, b"[]", merge=MergeType.RFC6902, meta=body_of(change, "--set"))
        found: Any = lake.meta(catalog)
    if key is not None:
        if key not in found:
            raise NotFound(f"the meta of catalog {catalog!r} has no {key!r}")
        found = found[key]
    out.document(dumps(found))
    out.result(found)


def _text(value: Any) -> str:
    from lake_spark.merge import dumps

    return dumps(value).decode()
