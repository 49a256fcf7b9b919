"""JSON documents as ordered logs of patches, for Spark and for Python."""

from typing import TYPE_CHECKING, Any

from lake_spark import errors
from lake_spark.errors import LakeError
from lake_spark.model import MergeType, TsSeq

if TYPE_CHECKING:
    from lake_spark.client import Lake

__all__ = ["Lake", "LakeError", "MergeType", "TsSeq", "errors", "register"]


def __getattr__(name: str) -> Any:
    # The client when somebody asks for it: loading it takes half a second, and `lake --help` does without.
    if name != "Lake":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lake_spark.client import Lake

    return Lake


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def register(spark: Any) -> None:
    """Make `format("lake")` known to a Spark session that did not find it by itself."""
    # PySpark is an extra: nothing else here needs it.
    from lake_spark.spark.source import LakeDataSource

    spark.dataSource.register(LakeDataSource)
