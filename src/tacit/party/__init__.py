"""A party's side of a run: recall, charge, compute and keep the replies to requests."""
