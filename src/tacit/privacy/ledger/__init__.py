"""The ledger: an append-only record of what was charged to which data set."""
