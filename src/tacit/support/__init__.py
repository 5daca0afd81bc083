"""General helpers: BLAS threads, files, tables of TOML files, type information, validation."""
