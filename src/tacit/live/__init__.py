"""A live federation: the agreed file, the server's and each party's own, and running them."""
