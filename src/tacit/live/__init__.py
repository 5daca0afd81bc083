"""Federations between organisations: server, parties and client over TLS."""
