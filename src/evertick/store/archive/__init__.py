"""The archive: days of the history as Parquet files, in a directory or in S3-compatible storage."""
