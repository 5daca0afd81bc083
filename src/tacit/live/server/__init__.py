"""The server of a live federation."""
