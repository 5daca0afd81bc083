"""Names of the files of a run directory and of a saved fit."""

RESULT, EVENTS, POSTERIOR = "result.json", "events.jsonl", "posterior.npz"
EVALUATION = "evaluation.json"
