"""The index in Redis: which deltas a catalog has, in which order, and which of them are visible."""

from lake_spark.index.connection import Connection, check_url
from lake_spark.index.index import Index, OpenWrite, ShardMark, SnapshotClaim
from lake_spark.index.members import digest_of
from lake_spark.index.setting import read_setting, write_setting
from lake_spark.index.transactions import Block, CatalogRun, TransactionIndex, abort_if_expired, application_version

__all__ = [
    "Block",
    "CatalogRun",
    "Connection",
    "Index",
    "OpenWrite",
    "ShardMark",
    "SnapshotClaim",
    "TransactionIndex",
    "abort_if_expired",
    "application_version",
    "check_url",
    "digest_of",
    "read_setting",
    "write_setting",
]
