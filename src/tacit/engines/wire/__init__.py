"""The engine between organisations: a server and parties over TLS."""
