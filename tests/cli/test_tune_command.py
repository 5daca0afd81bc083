"""`tacit tune` at the command line."""

import tomllib

SCHEMA = """
name = "Ward"
outcome = "ill"
positive = "yes"
[privacy]
epsilon = 2.0
delta = 1e-4
[data]
path = "absent.csv"
[columns]
age = {low = 0, high = 100}
ill = {levels = ["no", "yes"]}
[partition]
parties = 2
[schedule]
rounds = 2  # few
[tune]
records = 200
repeats = 2
[tune.grid]
method.clip = [0.5, 1.0]
"""


def test_tune_says_that_nothing_was_spent_and_leaves_a_configuration(tacit, tmp_path):
    (tmp_path / "ward.toml").write_text(SCHEMA, encoding="utf-8")
    code, out, error = tacit("tune", "ward.toml", "--set", "schedule.rounds=3", "--trials", "2")
    assert (code, error) == (0, "")
    assert "No budget was spent: only synthetic records were used." in out
    assert "200 training records per federation (as given)" in out
    assert "as configured" in out
    text = (tmp_path / "runs" / "ward-tuned" / "tuned.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["schedule"]["rounds"] == 3
    assert "# few" in text
    assert not list(tmp_path.rglob("*.sqlite"))
    code, out, error = tacit("tune", "ward.toml")
    assert code == 2
    assert "contains earlier trials; add --overwrite" in error
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine", encoding="utf-8")
    code, _, error = tacit("tune", "ward.toml", "--out", "mine", "--overwrite")
    assert code == 2
    assert "contains files that are not from tune" in error


def test_tune_explains_a_bad_grid(tacit, tmp_path):
    (tmp_path / "ward.toml").write_text(SCHEMA, encoding="utf-8")
    code, _, error = tacit("tune", "ward.toml", "--grid", "privacy.epsilon=1,2")
    assert code == 2
    assert "only keys of method, schedule, posterior can be tuned" in error
