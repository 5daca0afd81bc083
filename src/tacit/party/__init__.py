"""The code that runs at a party: it charges requests, computes the replies and stores them."""
