"""JSON documents as ordered logs of patches, for Spark and for Python."""

from lake_spark import errors
from lake_spark.client import Lake
from lake_spark.errors import LakeError
from lake_spark.model import MergeType, TsSeq

__all__ = ["Lake", "LakeError", "MergeType", "TsSeq", "errors"]
