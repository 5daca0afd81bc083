"""Expected sufficient statistics, exact or with noise."""
