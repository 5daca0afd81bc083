"""Conformance suite of stores of run state, which must survive killed processes and damaged
files.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tacit.errors import DataError, TacitError
from tacit.testing.differences import difference
from tacit.testing.kill_points import kill_points
from tacit.testing.ledger_script import ledger_script
from tacit.testing.script import Script
from tacit.testing.store_scripts import checkpoint_script, party_script

OpenStore = Callable[[Path, str], Any]
Kind = Literal["party", "checkpoint", "ledger"]
SCRIPTS: dict[Kind, Callable[[], Script]] = {
    "party": party_script,
    "checkpoint": checkpoint_script,
    "ledger": ledger_script,
}
DIGEST, OTHER = "one configuration", "another configuration"
CUTS, FLIPS = 6, 24


def check_store(
    open_store: OpenStore,
    kind: Kind,
    *,
    error: type[Exception] = DataError,
    seed: int = 0,
) -> None:
    """Assert that a store contains only complete writes, at whatever point the process is killed.

    The suite makes the writes of a run and reads them from a newly opened copy of the store's
    folder. After a write has returned, the copy must contain it completely, to the last bit. If the
    process is killed during a write, the copy must contain the state before or after this write.
    Truncated files and files with a flipped bit must be refused or read correctly. The store of
    another configuration must be refused or appear empty, unless it was adopted.

    A ledger must contain the noise key of a charge until its reply is stored, and not after that:
    no file may contain the key, or the random bytes from which it was derived, as bytes or as text.
    Its ε of one release must be at least the exact ε and at most 1.25 times this. It must refuse,
    and leave everything unchanged by, a charge that exceeds the budget, a repeated request with
    another content, event or data set, and a second reply to a request.

    Parameters
    ----------
    open_store
        `open_store(folder, digest)` opens the store in that folder, or makes one if the folder is
        empty. The digest identifies the configuration to which the store belongs; a ledger ignores
        it.
    kind
        "party": the methods of `tacit.party.store.PartyStore`. "checkpoint": those of
        `tacit.server.checkpoint.Checkpoint`. "ledger": those of
        `tacit.privacy.ledger.ledger.Ledger` that charge and keep replies (`identify`,
        `set_budgets`, `price`, `spent`, `open_many`, `store_replies`, `recall_many`, `charges`).
    error
        The exception that the store raises if it cannot read its files.
    seed
        Seed of the random positions at which files are damaged.
    """
    script = SCRIPTS[kind]()
    with tempfile.TemporaryDirectory(prefix="tacit-check-") as name:
        check = _Check(open_store, script, error, Path(name))
        folder = check.new_folder()
        expected = check.follow(folder)
        check.check_damage(folder, expected, seed)
        if kind != "ledger":
            check.check_other_configuration(folder, expected)
            check.check_adopted(folder, expected)


class _Check:
    """Opens copies of a store's folder in empty directories."""

    def __init__(
        self, open_store: OpenStore, script: Script, error: type[Exception], place: Path
    ) -> None:
        self.open_store, self.script, self.error, self._place = open_store, script, error, place
        self._count = 0

    def new_folder(self) -> Path:
        """Make an empty folder."""
        self._count += 1
        folder = self._place / f"folder-{self._count}"
        folder.mkdir()
        return folder

    def read(self, folder: Path, digest: str = DIGEST) -> Any:
        """Read the contents of a store from a copy of its folder, because reading may write."""
        copy = self.new_folder() / "copy"
        shutil.copytree(folder, copy)
        store = self.open_store(copy, digest)
        try:
            return self.script.read(store)
        finally:
            _close(store)
            shutil.rmtree(copy)

    def follow(self, folder: Path) -> Any:
        """Run all steps. Check the store at every point at which the process could be killed."""
        with kill_points(folder, self.new_folder()) as snapshots:
            store = self.open_store(folder, DIGEST)
        expected = self._blank(folder)
        self._check_snapshots(snapshots.made, "opening a new store", expected, expected)
        for name, step in self.script.steps:
            with kill_points(folder, self.new_folder()) as snapshots:
                after = step(store)
            gap = difference(after, self._opened(folder, f"written: after {name}"), "the store")
            assert gap is None, (
                f"written: {name} has returned, but a store opened now does not hold it: {gap}"
            )
            self._check_snapshots(snapshots.made, name, expected, after)
            self.script.inspect(folder)
            expected = after
        _close(store)
        self.script.inspect(folder)
        gap = difference(expected, self._opened(folder, "written: after close"), "the store")
        assert gap is None, f"written: the store was closed and opened again: {gap}"
        return expected

    def _blank(self, folder: Path) -> Any:
        found = self._opened(folder, "a new store")
        gap = difference(self.script.empty, found, "the store")
        assert gap is None, f"a new store: it is not empty: {gap}"
        return found

    def _opened(self, folder: Path, check: str) -> Any:
        try:
            return self.read(folder)
        except Exception as error:
            raise AssertionError(
                f"{check}: the store cannot be opened and read: {type(error).__name__}: "
                f"{_line(error)}"
            ) from error

    def _check_snapshots(
        self, made: list[tuple[str, Path]], step: str, before: Any, after: Any
    ) -> None:
        for where, snapshot in made:
            found = self._opened(snapshot, f"atomic: killed {where}, in {step}")
            gaps = [difference(one, found, "the store") for one in (before, after)]
            assert None in gaps, (
                f"atomic: killed {where}, in {step}: the store holds neither what it held before "
                f"({gaps[0]}) nor what was written ({gaps[1]})"
            )

    def check_damage(self, folder: Path, expected: Any, seed: int) -> None:
        """Check that truncated or changed files raise an error or are read correctly."""
        rng = np.random.default_rng(seed)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            body = path.read_bytes()
            cuts = {int(cut) for cut in np.linspace(0, len(body) - 1, CUTS)} if body else set()
            damaged = [(f"cut to {cut} bytes", body[:cut]) for cut in sorted(cuts)]
            for place in rng.integers(0, max(1, len(body)), FLIPS).tolist() if body else []:
                changed = bytearray(body)
                changed[place] ^= 1 << int(rng.integers(8))
                damaged.append((f"byte {place} changed", bytes(changed)))
            for what, content in damaged:
                path.write_bytes(content)
                self._check_damaged(folder, f"{path.name}, {what}", expected)
            path.write_bytes(body)

    def _check_damaged(self, folder: Path, what: str, expected: Any) -> None:
        try:
            found = self.read(folder)
        except self.error:
            return
        except Exception as other:
            raise AssertionError(
                f"torn: {what}: raised {type(other).__name__} ({_line(other)}), expected "
                f"{self.error.__name__}"
            ) from other
        gap = difference(expected, found, "the store")
        assert gap is None, f"torn: {what}: the damage was not detected: {gap}"

    def check_other_configuration(self, folder: Path, expected: Any) -> None:
        """Check that the state of another configuration is neither read nor changed."""
        try:
            found = self.read(folder, OTHER)
        except TacitError:
            pass
        else:
            gap = difference(self.script.empty, found, "the store")
            assert gap is None, (
                f"other run: opened for another configuration, the store is not empty: {gap}"
            )
        gap = difference(expected, self._opened(folder, "other run"), "the store")
        assert gap is None, (
            f"other run: opening the store for another configuration changed it: {gap}"
        )

    def check_adopted(self, folder: Path, expected: Any) -> None:
        """Check that a store can be assigned to another configuration, in one write."""
        assert self.script.adopt is not None
        store = self.open_store(folder, DIGEST)
        self.script.read(store)
        with kill_points(folder, self.new_folder()) as snapshots:
            after = self.script.adopt(store, OTHER)
        _close(store)
        for where, snapshot in [*snapshots.made, ("after close", folder)]:
            old, new = (self._gap(snapshot, digest, one) for digest, one in (
                (DIGEST, expected), (OTHER, after),
            ))  # fmt: skip
            held = new is None or (old is None and snapshot != folder)
            assert held, (
                f"adopt: killed {where}: the store holds neither the old configuration with its "
                f"state ({old}) nor the new one ({new})"
            )

    def _gap(self, folder: Path, digest: str, expected: Any) -> str | None:
        try:
            found = self.read(folder, digest)
        except TacitError as error:
            return _line(error)
        return difference(expected, found, "the store")


def _close(store: Any) -> None:
    if hasattr(store, "close"):
        store.close()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
