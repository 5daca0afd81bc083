"""A small OMOP CDM database with generated patients of two hospitals, for examples/omop.toml.

    python examples/omop.py            # writes omop.duckdb
    tacit run examples/omop.toml --set privacy.insecure_noise_seed=1

Tables and columns have the names of the OMOP Common Data Model 5.4; the patients do not exist.
"""

import sys
from pathlib import Path

import duckdb
import numpy as np

DIABETES = 201826  # concept: type 2 diabetes mellitus
FEMALE, MALE = 8532, 8507


def write_database(path: Path, patients: int = 1200, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    born = rng.integers(1925, 2000, patients)
    female = rng.random(patients) < 0.5
    diabetic = rng.random(patients) < 0.1 + 0.2 * (born < 1960)
    log_odds = -4.0 + 0.05 * (2020 - born) + 0.7 * diabetic - 0.3 * female
    died = rng.random(patients) < 1 / (1 + np.exp(-log_odds))
    with duckdb.connect(str(path)) as database:
        database.execute("create table care_site (care_site_id integer, care_site_name varchar)")
        database.execute("insert into care_site values (1, 'north'), (2, 'south')")
        database.execute(
            "create table person (person_id integer, gender_concept_id integer, "
            "year_of_birth integer, care_site_id integer)"
        )
        database.execute(
            "create table condition_occurrence (person_id integer, condition_concept_id integer)"
        )
        database.execute("create table death (person_id integer, death_date date)")
        rows = zip(range(patients), female, born, rng.integers(1, 3, patients), strict=True)
        database.executemany(
            "insert into person values (?, ?, ?, ?)",
            [(i, FEMALE if f else MALE, int(b), int(site)) for i, f, b, site in rows],
        )
        database.executemany(
            "insert into condition_occurrence values (?, ?)",
            [(int(i), DIABETES) for i in np.flatnonzero(diabetic)],
        )
        database.executemany(
            "insert into death values (?, '2021-06-30')", [(int(i),) for i in np.flatnonzero(died)]
        )


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "omop.duckdb")
    target.unlink(missing_ok=True)
    write_database(target)
    print(target)
