"""The command line: parse, call, show. Heavy imports are lazy."""
