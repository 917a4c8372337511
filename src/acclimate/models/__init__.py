"""Networks and where they come from."""
