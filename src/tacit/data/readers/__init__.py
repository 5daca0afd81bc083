"""One file a source: each has a `read` that answers a `Table`."""
