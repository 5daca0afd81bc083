"""Plans: every decision of a run, taken before anything is computed or charged."""
