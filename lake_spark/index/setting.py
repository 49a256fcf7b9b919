"""`lake.setting`: the lake's configuration, as text beside its index."""

from __future__ import annotations

from lake_spark.index.connection import Connection
from lake_spark.names import SETTING_KEY


def read_setting(connection: Connection) -> bytes | None:
    """The configuration as it is stored; None where there is none."""
    text = connection.call(lambda: connection.client.get(SETTING_KEY))
    return text if isinstance(text, bytes) else None


def write_setting(connection: Connection, text: bytes) -> None:
    """Put a configuration in the place of what is there."""
    connection.call(lambda: connection.client.set(SETTING_KEY, text))
