"""JSON documents as ordered logs of patches, for Spark and for Python."""

from typing import Any

from lake_spark import errors
from lake_spark.client import Lake
from lake_spark.errors import LakeError
from lake_spark.model import MergeType, TsSeq

__all__ = ["Lake", "LakeError", "MergeType", "TsSeq", "errors", "register"]


def register(spark: Any) -> None:
    """Make `format("lake")` known to a Spark session that did not find it by itself."""
    # PySpark is an extra: nothing else here needs it.
    from lake_spark.spark.source import LakeDataSource

    spark.dataSource.register(LakeDataSource)
