"""Public facts about columns, and the checks of records against them."""
