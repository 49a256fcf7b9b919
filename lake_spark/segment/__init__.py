"""Many deltas or snapshots in one Parquet object."""

from lake_spark.segment.format import Kind
from lake_spark.segment.reader import Fetch, SegmentMetadata, SegmentPart, SegmentReader, SegmentRow
from lake_spark.segment.writer import Segment, Span, write_segment

__all__ = [
    "Fetch",
    "Kind",
    "Segment",
    "SegmentMetadata",
    "SegmentPart",
    "SegmentReader",
    "SegmentRow",
    "Span",
    "write_segment",
]
