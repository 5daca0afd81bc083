"""Names of the files in the public part of a run directory and in a saved fit."""

RESULT, EVENTS, POSTERIOR = "result.json", "events.jsonl", "posterior.npz"
