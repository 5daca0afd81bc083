"""General helpers: BLAS threads, files, tables, type information, validation."""
