"""Posteriors of posteriordb with reference statistics: locate, download and verify.

The public database has one zip file of JSON per data set. It also has one zip file per posterior,
with the draws of ten long NUTS chains. `fetch_posteriordb` downloads these files at one commit. It
stores the data as data/NAME.json, and summaries of the draws as reference.json: their number,
means, standard deviations, quantiles and correlations. A folder posteriordb in TACIT_DATA has the
same files.

A data set is used only if its content has the recorded SHA-256. This digest is computed from the
numbers, not from their text, so that it stays the same if a file is written in another format.
Reference statistics are used only if Σ mean/sd and Σ log sd match the recorded values.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from tacit.data.readers.download import Progress, cache_folder, read_url
from tacit.errors import ConfigError, DataError
from tacit.support.storage import write_text

SOURCE = "posteriordb"
COMMIT = "28f8d3d6e975315f42aa274a8399f21e07a43b30"
PUBLIC = f"https://raw.githubusercontent.com/stan-dev/posteriordb/{COMMIT}/posterior_database"
MOST_BYTES = 50_000_000
"""Size limit of one public file, packed or not; the largest unpacks to about 6 MB."""
TOLERANCE = 1e-3
"""Tolerance, per coordinate, of the sums that identify reference statistics; dividing by n instead
of n − 1 in the standard deviation changes the sums by less.
"""

DATA: dict[str, str] = {
    "GLMM_Poisson_data": "bea82ea00f6d4e38215e0874eac7ee76967e1aa943e40cb739015f075baedf32",
    "diamonds": "d1db45481bb513ff22c06c63dad2257ce5a669bf0947b20f148eb41e6070391b",
    "earnings": "8c2aad4da86c6bd7926c69a3172a78a477779ab344710336f751f3c7bc912fbb",
    "eight_schools": "4f87f570aea53d4dbc0b65372cd75eb058920ff3457e1c969cdfb4a9a48f124d",
    "election88": "d86c20b2f668860a4e4a2e72296eb33fe67aeb2ac0b5054c2b97583c11f66159",
    "kidiq": "934e208dbacea93a877bb315c4305a2c0358b4488490921dfcd5ee4d7eff3cb5",
    "kidiq_with_mom_work": "5a5e38db0809186fdba35feaaec98c0aab23d5ef8adb949a8dae7207d06efe05",
    "kilpisjarvi_mod": "4ccd26bb34ba9208788ac84b3e3e6a0bd0b97b9a0e7e435dce6d8ee2ff12bf14",
    "low_dim_gauss_mix": "4d1416b71d7bfb5c2bfcbf9b5922453ebaa97d1189b63279a83ae64d8c98d6a2",
    "mesquite": "49837bc9b9a30775a4b0ed21461044afd6dcd43eee6380a9fda73fa6df9f7edd",
    "nes1972": "49b76578f9787fec147ec80fcdc7cffa4dc11928171a416da5de7a6dd6ad58ce",
    "nes1976": "380604ea7ab9937e70f6c105ee13088e1a45cdf9b16cd7b3ebd3e9ee24b7241c",
    "nes1980": "3fa2dd8e8d722792cb04530bcf025b34c2b49370e8c2e346ccb4838b61db4004",
    "nes1984": "c191c380e8b362246eed8136fb5fdbb5af3ae3b94fca098eeceae01f3d285eb3",
    "nes1988": "8b119349e3af6ef3bd33504faf72ce4113e0f5583e5969f3c3fb9e317a8694a4",
    "nes2000": "bb006cf13122263f4290c90028c4a509bff131fee2c13d10782f31083520b03b",
    "radon_all": "8b0f99d25d05d56530eb4c4c67814054c49f50a9827903acdb11701778fdb890",
    "sblri": "33318fd1eda9d59525501d3efba71c8dfacd1f934f2a8351b6742400547b4838",
    "wells_data": "7d93bf6f45abaada140182e5877d67ccbe6cfd54e4a7fa357b3409b7e14b110b",
}
"""SHA-256 of the content of each data set."""
REFERENCES: dict[str, tuple[float, float]] = {
    "diamonds-diamonds": (4575.0646, -109.82534),
    "earnings-log10earn_height": (70.321352, -12.296643),
    "earnings-logearn_height": (69.978138, -9.7771512),
    "earnings-logearn_height_male": (70.622893, -11.836851),
    "earnings-logearn_interaction": (59.627139, -12.247918),
    "earnings-logearn_logheight_male": (58.404201, -6.175696),
    "eight_schools-eight_schools_noncentered": (10.171391, 15.225659),
    "kidiq-kidscore_momhs": (72.772308, 1.1453126),
    "kidiq-kidscore_momhsiq": (45.740595, -0.72212875),
    "kidiq-kidscore_momiq": (43.948537, -1.5155918),
    "kidiq_with_mom_work-kidscore_interaction_c": (134.05921, -4.3271105),
    "kidiq_with_mom_work-kidscore_interaction_z": (133.52015, 2.0961815),
    "kidiq_with_mom_work-kidscore_mom_work": (70.831277, 3.8920624),
    "kilpisjarvi_mod-kilpisjarvi": (10.806785, -3.7169103),
    "low_dim_gauss_mix-low_dim_gauss_mix": (85.684665, -16.91142),
    "mesquite-logmesquite": (44.206984, -14.109495),
    "mesquite-logmesquite_logva": (64.956659, -10.741885),
    "mesquite-logmesquite_logvas": (37.335206, -13.995446),
    "mesquite-logmesquite_logvash": (38.167034, -12.174699),
    "mesquite-logmesquite_logvolume": (81.608488, -8.368353),
    "nes1972-nes": (70.164052, -22.620534),
    "nes1976-nes": (69.546288, -22.479804),
    "nes1980-nes": (48.929223, -19.744504),
    "nes1984-nes": (60.343824, -22.169152),
    "nes1988-nes": (55.573512, -21.967093),
    "nes2000-nes": (40.194777, -17.207887),
    "sblri-blr": (4851.238, -37.002584),
}
"""Two sums over the coordinates of the reference draws, Σ mean/sd and Σ log sd, by posterior
("data-model").
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReferenceStatistics:
    """Summaries of a posterior's reference draws.

    Parameters
    ----------
    names
        Stan's names of the coordinates, such as "beta[1]".
    mean, sd
        Means and standard deviations.
    quantiles
        The 5, 50 and 95 % quantiles, one row each.
    correlation
        Correlation matrix.
    draws
        Number of draws.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    sd: np.ndarray
    quantiles: np.ndarray
    correlation: np.ndarray
    draws: int


def list_posteriors() -> tuple[str, ...]:
    """Return the names of the posteriors that have reference statistics.

    A name consists of the name of the data set and the name of the model: "data-model".

    >>> len(list_posteriors())
    27
    """
    return tuple(REFERENCES)


def load_posterior_data(name: str) -> dict[str, Any]:
    """Read a data set of posteriordb as a dictionary, in which lists of the file are arrays.

    Parameters
    ----------
    name
        Name of the data set, the first part of a posterior's name.
    """
    if name not in DATA:
        raise ConfigError(
            f'"{name}" is not a data set of posteriordb; choose from {", ".join(DATA)}'
        )
    path = _path(f"data/{name}.json")
    content = _parsed(path.read_bytes(), str(path))
    if _digest(content) != DATA[name]:
        raise DataError(
            f"{path} has content of SHA-256 {_digest(content)}, expected {DATA[name]};"
            f" delete it and run `tacit data fetch {SOURCE}`"
        )
    return {
        key: np.asarray(value) if isinstance(value, list) else value
        for key, value in content.items()
    }


def load_reference(name: str) -> ReferenceStatistics:
    """Read the reference statistics of a posterior.

    Parameters
    ----------
    name
        One of `tacit.datasets.list_posteriors()`, such as "earnings-logearn_height".
    """
    if name not in REFERENCES:
        raise ConfigError(
            f'"{name}" is not a posterior with a reference; choose from {", ".join(REFERENCES)}'
        )
    path = _path("reference.json")
    entry = _parsed(path.read_bytes(), str(path)).get(name)
    if entry is None:
        raise DataError(f"{path} has no {name}; delete it and run `tacit data fetch {SOURCE}`")
    _check_statistics(name, entry, str(path))
    return ReferenceStatistics(
        names=tuple(entry["names"]),
        mean=np.asarray(entry["mean"], np.float64),
        sd=np.asarray(entry["sd"], np.float64),
        quantiles=np.asarray([entry[key] for key in ("q05", "q50", "q95")], np.float64),
        correlation=np.asarray(entry["correlation"], np.float64),
        draws=int(entry["draws"]),
    )


def fetch_posteriordb(progress: Progress | None = None, *, public: str | None = None) -> Path:
    """Download missing files of posteriordb to the cache, and return the folder with all files.

    Parameters
    ----------
    progress
        A function of (file name, files done, total number of files).
    public
        URL of the folder posterior_database; by default at GitHub, at a fixed commit.
    """
    here = locate()
    if here is not None:
        return here
    public = PUBLIC if public is None else public
    folder = cache_folder() / SOURCE
    tell = _counted(progress, len(DATA) + len(REFERENCES))
    for name, expected in DATA.items():
        path = folder / "data" / f"{name}.json"
        if not path.is_file():
            url = f"{public}/data/data/{name}.json.zip"
            content = _unpacked(url)
            if _digest(content) != expected:
                raise DataError(
                    f"the content of {url} has the SHA-256 digest {_digest(content)}, but "
                    f"{expected} was expected, so it was not stored; put the "
                    f"original file in $TACIT_DATA/{SOURCE}/data/{name}.json"
                )
            _write(path, content)
        tell(f"{name}.json")
    statistics = {}
    for name in REFERENCES:
        url = f"{public}/reference_posteriors/draws/draws/{name}.json.zip"
        data, model = name.split("-", 1)
        entry = {"model": model, "data": data, **summarise_draws(_unpacked(url), url)}
        _check_statistics(name, entry, url)
        statistics[name] = entry
        tell(f"draws of {name}")
    _write(folder / "reference.json", statistics)
    return folder


def summarise_draws(chains: Any, origin: str) -> dict[str, Any]:
    """Return the summary of the draws of one posterior, as it is stored in reference.json.

    Each of the `chains` is a dictionary from the name of a coordinate to its draws. `origin` is the
    URL of the draws, for error messages.
    """
    try:
        names = list(chains[0])
        draws = np.asarray(
            [np.concatenate([np.asarray(chain[name], float) for chain in chains]) for name in names]
        )
    except (TypeError, KeyError, IndexError, ValueError):
        draws = np.empty((0, 0))
        names = []
    if draws.ndim != 2 or draws.shape[1] < 2 or not np.all(np.isfinite(draws)):
        raise DataError(f"{origin} is not a list of chains with finite draws; replace it")
    low, median, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=1)
    return {
        "draws": draws.shape[1],
        "names": names,
        "mean": draws.mean(axis=1).tolist(),
        "sd": draws.std(axis=1, ddof=1).tolist(),
        "q05": low.tolist(),
        "q50": median.tolist(),
        "q95": high.tolist(),
        "correlation": np.corrcoef(draws).reshape(len(names), len(names)).tolist(),
    }


def locate() -> Path | None:
    """Return a folder that contains all needed files of posteriordb; None if there is no such
    folder.
    """
    needed = [*(f"data/{name}.json" for name in DATA), "reference.json"]
    return next((one for one in _folders() if all((one / file).is_file() for file in needed)), None)


def _folders() -> list[Path]:
    given = os.environ.get("TACIT_DATA")
    return [
        *([Path(given).expanduser() / SOURCE] if given else []),
        cache_folder() / SOURCE,
    ]


def _path(file: str) -> Path:
    folders = _folders()
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    raise DataError(
        f"{file} of {SOURCE} is missing; run `tacit data fetch {SOURCE}`, or set TACIT_DATA to a"
        f" folder that contains {SOURCE}/{file}"
    )


def _counted(progress: Progress | None, total: int) -> Callable[[str], None]:
    done = iter(range(1, total + 1))

    def tell(name: str) -> None:
        if progress is not None:
            progress(name, next(done), total)

    return tell


def _unpacked(url: str) -> Any:
    body = read_url(url, limit=MOST_BYTES, source=SOURCE)
    try:
        with ZipFile(io.BytesIO(body)) as packed:
            files = [one for one in packed.infolist() if one.filename.endswith(".json")]
            if len(files) != 1 or files[0].file_size > MOST_BYTES:
                raise DataError(
                    f"{url} contains {len(files)} JSON files; expected one file of at most 50 MB: "
                    f"put the files of {SOURCE} in $TACIT_DATA/{SOURCE}"
                )
            return _parsed(packed.read(files[0]), url)
    except BadZipFile as error:
        raise DataError(f"{url} is not a zip file ({error}); try again") from error


def _parsed(body: bytes, origin: str) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise DataError(f"{origin} is not JSON ({error}); delete it and fetch it again") from error


def _digest(content: Any) -> str:
    """Return the SHA-256 of a JSON document.

    It does not depend on the order of keys or on the notation of numbers (1 or 1.0).
    """
    text = json.dumps(_as_floats(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _as_floats(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _as_floats(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_as_floats(value) for value in content]
    return float(content) if isinstance(content, int | float) else content


def fingerprint(entry: Mapping[str, Any]) -> tuple[float, float]:
    """Return Σ mean/sd and Σ log sd over all coordinates of a summary of draws.

    These two sums are used to recognise the draws.
    """
    pairs = list(zip(entry["mean"], entry["sd"], strict=True))
    return (
        math.fsum(mean / sd for mean, sd in pairs),
        math.fsum(math.log(sd) for _, sd in pairs),
    )


def _check_statistics(name: str, entry: Mapping[str, Any], origin: str) -> None:
    expected = REFERENCES[name]
    try:
        found = fingerprint(entry)
        size = sum(abs(mean / sd) for mean, sd in zip(entry["mean"], entry["sd"], strict=True))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError(
            f"{origin}: {name} has no usable means and sds; replace the file"
        ) from error
    allowed = TOLERANCE * max(1.0, size), TOLERANCE * max(1, len(entry["mean"]))
    if not all(abs(a - b) <= c for a, b, c in zip(found, expected, allowed, strict=True)):
        raise DataError(
            f"{origin}: {name} has Σ mean/sd = {found[0]:.6g} and Σ log sd = {found[1]:.6g},"
            f" expected {expected[0]:.6g} and {expected[1]:.6g}, so its draws are not those of"
            f" commit {COMMIT[:8]} of posteriordb; delete it and run `tacit data fetch {SOURCE}`"
        )


def _write(path: Path, content: Any) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content))
    except OSError as error:
        raise DataError(
            f"cannot write {path} ({error}); set XDG_CACHE_HOME to a writable folder"
        ) from error
