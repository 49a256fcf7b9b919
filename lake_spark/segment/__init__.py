"""Many deltas or snapshots in one Parquet object."""

from lake_spark.segment.reader import Fetch, SegmentMetadata, SegmentReader, SegmentRow
from lake_spark.segment.writer import Segment, Span, write_segment

__all__ = ["Fetch", "Segment", "SegmentMetadata", "SegmentReader", "SegmentRow", "Span", "write_segment"]
