"""The protocol between organisations: messages, encodings, frames, TLS, state machines."""
