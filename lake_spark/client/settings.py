"""The lake's configuration: the names of `lake.setting`, and the storage that they describe."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from lake_spark.errors import ConfigError, InvalidBody
from lake_spark.merge import dumps, loads
from lake_spark.options import Options
from lake_spark.storage import FileStorage, MemoryStorage, S3Storage, Storage

NAMES = ("Name", "Storage", "Bucket", "Endpoint", "Region", "AccessKey", "SecretKey", "AESPwd", "BasePath")
# Two names of one storage.
FOLDERS = ("file", "local")
STORAGES = ("memory", *FOLDERS, "s3", "oss")
_SECRETS = ("AccessKey", "SecretKey", "AESPwd")


class Config(Mapping[str, str]):
    """A lake's setting, as a mapping of the names above to text. Its repr shows no secret."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        for name, value in given.items():
            if name not in NAMES:
                near = difflib.get_close_matches(name, NAMES, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(NAMES)}"
                raise ConfigError(f"unknown name {name!r} in the lake's configuration; {hint}")
            if not isinstance(value, (str, os.PathLike)):
                raise ConfigError(f"{name} in the lake's configuration is text, not {type(value).__name__}")
        self._values = {name: os.fspath(given[name]) for name in NAMES if given.get(name)}
        if self.get("Storage", "memory") not in STORAGES:
            raise ConfigError(
                f"Storage in the lake's configuration is one of {', '.join(STORAGES)}; not {self['Storage']!r}"
            )
        if ":" in self.get("Name", "") or not self.get("Name", "-").isprintable():
            raise ConfigError(f"Name in the lake's configuration has no colon and is printable; not {self['Name']!r}")

    @classmethod
    def parse(cls, text: bytes) -> Config:
        """The setting as Redis keeps it; names that other tools put there are left out."""
        try:
            value = loads(text)
        except InvalidBody as error:
            raise ConfigError(f"lake.setting in Redis is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ConfigError("lake.setting in Redis is not a JSON object")
        return cls({name: value[name] for name in NAMES if value.get(name) is not None})

    def dump(self) -> bytes:
        return dumps(self._values)

    def __getitem__(self, name: str) -> str:
        value: str = self._values[name]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shown = {name: "***" if name in _SECRETS else value for name, value in self._values.items()}
        return f"Config({shown})"


def storage_of(config: Config, options: Options) -> Storage:
    """The storage that a configuration describes."""
    kind = config.get("Storage", "memory")
    if kind == "memory":
        return MemoryStorage()
    if kind in FOLDERS:
        return FileStorage(_needed(config, "BasePath"), fsync=options.fsync)  # type: ignore[arg-type] # checked there
    common: dict[str, Any] = {
        "access_key": config.get("AccessKey"),
        "secret_key": config.get("SecretKey"),
        "region": config.get("Region"),
        "base_path": config.get("BasePath", ""),
        "timeout": options.storage_timeout,
        "connect_timeout": options.storage_connect_timeout,
        "retries": options.storage_retries,
    }
    if kind == "oss":
        return S3Storage.oss(_needed(config, "Bucket"), _needed(config, "Endpoint"), **common)
    return S3Storage(_needed(config, "Bucket"), endpoint=config.get("Endpoint"), **common)


def _needed(config: Config, name: str) -> str:
    if name not in config:
        raise ConfigError(f"the lake's configuration has Storage={config['Storage']!r} but no {name}")
    return config[name]
