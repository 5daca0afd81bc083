"""Messages, encodings and state tables of the protocol between organisations."""
