"""Merging: Replace, RFC 7396 and RFC 6902, and the fold of a log into a document."""

from lake_spark.merge.diff import diff
from lake_spark.merge.fold import Fold, check_body
from lake_spark.merge.jsontext import Number, dumps, encode, loads

__all__ = ["Fold", "Number", "check_body", "diff", "dumps", "encode", "loads"]
