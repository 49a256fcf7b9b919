"""`lake export` and `lake import`: documents and logs as files, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lake_spark.cli.app import CARE, ExitCode, Json, Url, Yes, app
from lake_spark.cli.context import confirm, opened
from lake_spark.cli.output import Output

_FILE = "A name that ends with .ndjson, .jsonl (also with .gz or .zst) or .parquet."
Format = Annotated[str, typer.Option("--format", metavar="ndjson|parquet", help="In place of what the name tells.")]


@app.command("export", rich_help_panel=CARE)
def export(
    file: Annotated[Path, typer.Argument(help=_FILE)],
    prefix: Annotated[str, typer.Option("--prefix", help="Only catalogs whose names begin with this.")] = "",
    deltas: Annotated[bool, typer.Option("--deltas", help="The logs, not the documents.")] = False,
    as_of: Annotated[str, typer.Option("--as-of", help="A TsSeq, or a moment in ISO 8601.")] = "",
    format: Format = "",
    yes: Yes = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Write documents, or with --deltas whole logs, to a file, all as of one cut."""
    from lake_spark.client.exporting import export_file
    from lake_spark.client.lake import version_at
    from lake_spark.client.rowfiles import RowFile
    from lake_spark.names import SHARDS

    out = Output(json)
    target = RowFile.of(file, format)
    if file.exists():
        confirm([f"replace the file {file}"], yes, out)
    with opened(url) as lake:
        session = lake._session
        total = sum(session.index.registry_sizes(SHARDS))
        with out.progress("exporting", None if prefix else total) as progress:
            rows = export_file(
                session,
                target,
                prefix=prefix,
                deltas=deltas,
                as_of=version_at(as_of) if as_of else None,
                advance=progress.advance,
            )
    what = "deltas" if deltas else "documents"
    out.text(f"{rows} {what} in {file}")
    out.result({"file": str(file), what: rows})


@app.command("import", rich_help_panel=CARE)
def import_(
    file: Annotated[Path, typer.Argument(help=_FILE)],
    again: Annotated[bool, typer.Option("--again", help="Import a file once more that was imported before.")] = False,
    bad_records: Annotated[
        Path | None,
        typer.Option("--bad-records", help="A file for rows that are refused; without it they are an error."),
    ] = None,
    chunk_rows: Annotated[int, typer.Option("--chunk-rows", help="Rows that become visible at once.", min=1)] = 50_000,
    format: Format = "",
    url: Url = None,
    json: Json = False,
) -> None:
    """Write the rows of a file: documents, or changes with catalog, body, path, merge_type and meta.

    Each chunk goes in whole and once. An import that was interrupted is finished by the same command; rows that are in
    are left out.
    """
    from lake_spark.client.importing import begin_import, import_file, rows_in
    from lake_spark.client.rowfiles import RowFile

    out = Output(json)
    source = RowFile.of(file, format)
    with opened(url, create=True) as lake:
        session = lake._session
        state = begin_import(session, source, again=again)
        if state.before:
            out.note(
                f"the rows up to {state.before} of {file} are in already and are left out (--again imports them too)"
            )
        try:
            with out.progress("importing") as progress:
                import_file(
                    session,
                    source,
                    state,
                    chunk_rows=chunk_rows,
                    bad_records=bad_records,
                    advance=progress.advance,
                )
        except KeyboardInterrupt:
            hint = "the same command without --again" if again else "the same command"
            done = rows_in(session, state)
            out.note(f"the rows up to {done} of {file} are in, whole chunks of them: {hint} finishes the rest")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    found = {"rows": state.rows, "chunks": state.chunks, "skipped": state.before, "bad": state.bad}
    out.text(f"{state.rows} rows of {file} are in, in {state.chunks} chunks")
    if state.bad:
        out.note(f"{state.bad} rows were refused: see {bad_records}")
    out.result({"file": str(file), **found})
