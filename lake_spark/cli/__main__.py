"""`python -m lake_spark.cli` is the `lake` command."""

from lake_spark.cli import main

main()
