"""The lake as a Spark data source: `spark.read.format("lake")` and `df.write.format("lake")`."""

from lake_spark.spark.source import LakeDataSource

__all__ = ["LakeDataSource"]
