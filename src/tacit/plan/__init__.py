"""Plans: all decisions of a run, made before anything is computed or charged."""
