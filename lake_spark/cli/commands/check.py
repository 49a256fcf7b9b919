"""`lake doctor` and `lake init`: is everything as it must be, and making it so."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lake_spark.cli.app import CARE, START, ExitCode, Json, Url, Yes, app
from lake_spark.cli.context import confirm, opened
from lake_spark.cli.output import Output

if TYPE_CHECKING:
    from lake_spark.client.findings import Finding

_STYLES = {"ok": "green", "warning": "yellow", "error": "red"}
# Options whose values are secrets: they name an environment variable.
_SECRETS = {"AESPwd": "--aes-password-env", "AccessKey": "--access-key-env", "SecretKey": "--secret-key-env"}


@app.command(rich_help_panel=CARE)
def doctor(url: Url = None, json: Json = False) -> None:
    """Look at Redis, the setting, the storage and every step of the protocol; say what to do.

    A small object and a small catalog are written, read and removed without a trace. Exit code 5: there are errors.
    """
    from lake_spark.client.doctor import examine

    out = Output(json)
    with opened(url, configured=False) as lake:
        found = []
        for finding in examine(lake):
            _show(out, finding)
            found.append(finding)
    _end(out, found)


def _show(out: Output, finding: Finding) -> None:
    out.text(f"{finding.level:<8} {finding.name:<22} {finding.found}", style=_STYLES[finding.level])
    if finding.level != "ok":
        for what, text in (("means", finding.meaning), ("do", finding.action)):
            if text:
                out.text(f"{'':8} {what + ':':<22} {text}")


def _end(out: Output, found: Iterable[Finding]) -> None:
    """Tell programs all of it, and end with a code that says whether something must be done."""
    from lake_spark.client.findings import errors_of

    shown = list(found)
    errors = errors_of(shown)
    out.result({"healthy": not errors, "findings": [finding._asdict() for finding in shown]})
    if errors:
        raise typer.Exit(ExitCode.FINDINGS)


@app.command(rich_help_panel=START)
def init(
    name: Annotated[str, typer.Option("--name", help="The lake's name: part of every key in Redis.")] = "",
    storage: Annotated[str, typer.Option("--storage", metavar="file|s3|oss", help="Where bodies are kept.")] = "",
    bucket: Annotated[str, typer.Option("--bucket", help="For s3 and oss.")] = "",
    endpoint: Annotated[str, typer.Option("--endpoint", help="For stores other than Amazon's.")] = "",
    region: Annotated[str, typer.Option("--region", help="For s3 and oss.")] = "",
    base_path: Annotated[str, typer.Option("--base-path", help="The folder: of files, or in the bucket.")] = "",
    aes_password_env: Annotated[
        str, typer.Option("--aes-password-env", metavar="VARIABLE", help="The variable with the password for bodies.")
    ] = "",
    access_key_env: Annotated[
        str, typer.Option("--access-key-env", metavar="VARIABLE", help="The variable with the access key.")
    ] = "",
    secret_key_env: Annotated[
        str, typer.Option("--secret-key-env", metavar="VARIABLE", help="The variable with the secret key.")
    ] = "",
    from_file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A JSON file with the names of lake.setting.")
    ] = None,
    create_bucket: Annotated[bool, typer.Option("--create-bucket", help="Make the bucket if it is not there.")] = False,
    yes: Yes = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Write lake.setting, once Redis and the storage are as they must be.

    What is not given stays as it is. Secrets are never arguments: name an environment variable that holds them.
    """
    from lake_spark.client import setup

    out = Output(json)
    if (url or os.environ.get("LAKE_URL") or "").startswith("file:"):
        out.text("a lake in a folder has its setting already: use it as it is")
        out.result({"written": False, "reason": "a lake in a folder has its setting already"})
        return
    given = _given_in(from_file)
    plain = {"Name": name, "Storage": storage, "Bucket": bucket, "Endpoint": endpoint, "Region": region}
    given.update({key: value for key, value in {**plain, "BasePath": base_path}.items() if value})
    variables = {"AESPwd": aes_password_env, "AccessKey": access_key_env, "SecretKey": secret_key_env}
    given.update({key: _secret(_SECRETS[key], variable) for key, variable in variables.items() if variable})
    with opened(url, configured=False) as lake:
        before = setup.current_config(lake)
        config = setup.new_config(before, given)
        found = list(setup.check_config(lake, config, create_bucket=create_bucket))
        for finding in found:
            if finding.level != "ok":
                _show(out, finding)
        if setup.refusals(found):
            out.note("nothing was written: put right what is above, then run the same command again")
            _end(out, found)
        lines = setup.consequences(lake, before, config)
        if lines:
            confirm(lines, yes, out)
        setup.apply_config(lake, config)
        shown: dict[str, Any] = {key: "***" if key in _SECRETS else value for key, value in config.items()}
    out.record(shown)
    out.text("lake.setting is written; lake doctor checks all of it")
    out.result({"written": True, "setting": shown})


def _given_in(file: Path | None) -> dict[str, str]:
    if file is None:
        return {}
    from lake_spark.client.settings import Config
    from lake_spark.errors import ConfigError, InvalidBody
    from lake_spark.merge import loads

    try:
        value = loads(file.read_bytes())
    except InvalidBody as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{file} is no JSON object with the names of lake.setting")
    return dict(Config(value))


def _secret(option: str, variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        # Not its name: somebody may have put the secret itself there.
        raise typer.BadParameter(f"{option} names an environment variable, and there is none of that name")
    return value
