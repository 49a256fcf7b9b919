"""Merging: Replace, RFC 7396 and RFC 6902, and the fold of a log into a document."""

from lake_spark.merge.diff import diff
from lake_spark.merge.fold import Fold, check_body
from lake_spark.merge.jsontext import Number, are_json, check_depth, dumps, encode, loads, loads_each, pretty
from lake_spark.merge.rfc6902 import value_at

__all__ = [
    "Fold",
    "Number",
    "are_json",
    "check_body",
    "check_depth",
    "diff",
    "dumps",
    "encode",
    "loads",
    "loads_each",
    "pretty",
    "value_at",
]
