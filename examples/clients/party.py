"""A party for a small machine: `tacit.connect` and NumPy, no compiler, no tacit configuration.

    python party.py party.json

The same regression and the same party.json as party.mjs. The last line of the output has the
posterior and, on Linux, the largest memory of this process in megabytes.
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np

import tacit

settings_file = Path(sys.argv[1]).resolve()
settings = json.loads(settings_file.read_text())
folder, bounds = settings_file.parent, settings["columns"]
with (folder / settings["data"]).open() as file:
    rows = list(csv.DictReader(file))
low, high = np.array(list(bounds.values()), float).T
raw = np.array([[float(row[name]) for name in bounds] for row in rows])
scaled = (np.clip(raw, low, high) - (low + high) / 2) / ((high - low) / 2)
x = np.column_stack([np.ones(len(rows)), scaled])
y = np.array([float(row[settings["outcome"]]) for row in rows])
variance = settings["noise_sd"] ** 2

files = {key: folder / settings[key] for key in ("certificate", "key", "authority")}
address = f"{settings['host']}:{settings['port']}"
with tacit.connect(address, **files, data_size=len(rows)) as session:
    while (turn := session.wait_for_posterior()) is not None:
        linear = turn.cavity["linear"] + x.T @ y / variance
        quadratic = turn.cavity["quadratic"] - 0.5 * x.T @ x / variance
        session.send_update(turn, {"linear": linear, "quadratic": quadratic})
    q = session.final_posterior

covariance = np.linalg.inv(-2.0 * q["quadratic"])
found = {"names": ["intercept", *bounds], "mean": (covariance @ q["linear"]).tolist()}
found["sd"] = np.sqrt(np.diagonal(covariance)).tolist()
if (status := Path("/proc/self/status")).exists():  # Linux
    peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    found["megabytes"] = round(int(peak.split()[1]) / 1024)
found["jax"] = "jax" in sys.modules
print(json.dumps(found))
