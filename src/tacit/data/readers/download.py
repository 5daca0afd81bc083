"""Find public data files in TACIT_DATA or in a cache; otherwise download them.

None of these files is part of tacit. A file is used only if its SHA-256 is correct.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.errors import ConfigError, DataError

TIMEOUT_S = 30.0
CHUNK_BYTES = 1 << 16

Progress = Callable[[str, int, int], None]
"""Called with the file's name, the bytes so far and the total bytes."""


@dataclass(frozen=True, kw_only=True)
class PublicFile:
    """One file of a data set, with its public URL."""

    name: str
    url: str
    sha256: str
    size: int
    unpacked: bool = False
    """True: the checksum is of the decompressed content of a gzip file."""


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"

REGISTRY: dict[str, tuple[PublicFile, ...]] = {
    "adult": (
        PublicFile(
            name="adult.data",
            url=f"{_UCI}/adult/adult.data",
            sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            size=3_974_305,
        ),
        PublicFile(
            name="adult.test",
            url=f"{_UCI}/adult/adult.test",
            sha256="a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            size=2_003_153,
        ),
    ),
    "rugged": (
        PublicFile(
            name="rugged_data.csv",
            url="https://raw.githubusercontent.com/rmcelreath/rethinking/"
            "ac1b3b2cda83f3e14096e2d997a6e30ad109eeee/data/rugged.csv",
            sha256="8c5cfbaf782abffc522b362eb430acf54d73cab6f2a1360c41ef21bc7def89dc",
            size=50_096,
        ),
    ),
    "heart": (
        PublicFile(
            name="processed.cleveland.data",
            url=f"{_UCI}/heart-disease/processed.cleveland.data",
            sha256="a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
            size=18_461,
        ),
        PublicFile(
            name="processed.hungarian.data",
            url=f"{_UCI}/heart-disease/processed.hungarian.data",
            sha256="d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
            size=10_263,
        ),
        PublicFile(
            name="processed.switzerland.data",
            url=f"{_UCI}/heart-disease/processed.switzerland.data",
            sha256="834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
            size=4_109,
        ),
        PublicFile(
            name="processed.va.data",
            url=f"{_UCI}/heart-disease/processed.va.data",
            sha256="e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
            size=6_737,
        ),
    ),
    "mnist": (
        PublicFile(
            name="train-images-idx3-ubyte.gz",
            url=f"{_MNIST}/train-images-idx3-ubyte.gz",
            sha256="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            size=9_912_422,
            unpacked=True,
        ),
        PublicFile(
            name="t10k-images-idx3-ubyte.gz",
            url=f"{_MNIST}/t10k-images-idx3-ubyte.gz",
            sha256="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            size=1_648_877,
            unpacked=True,
        ),
    ),
}


def cache_folder() -> Path:
    """Return the cache folder, as defined by the XDG specification."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tacit" / "data"


def locate(name: str, *, only: Sequence[str] = ()) -> Path | None:
    """Return the folder that contains all files of a source; None if there is no such folder.

    If `only` is given, only the files with these names are needed.
    """
    given = os.environ.get("TACIT_DATA")
    folders = [Path(given).expanduser() / name] if given else []
    folders.append(cache_folder() / name)
    for folder in folders:
        if all((folder / file.name).is_file() for file in _files(name, only)):
            return folder
    return None


def _files(name: str, only: Sequence[str]) -> list[PublicFile]:
    return [file for file in REGISTRY[name] if not only or file.name in only]


def fetch(name: str, *, progress: Progress | None = None) -> Path:
    """Download the files of a source to the cache unless they exist, and return their folder.

    The files of MIMIC-III and of Wikipedia are never downloaded. If they are missing, the error
    says how to get them.

    Parameters
    ----------
    name
        A data set of `tacit.datasets.list()`.
    progress
        Function of (file name, bytes done, total bytes) that is called during a download.
    """
    if name == "mimic3":
        from tacit.data.readers.mimic3 import files as mimic3_files

        return mimic3_files.local_folder(None)
    if name == "wikipedia":
        from tacit.data.readers import corpus

        return corpus.folder()
    if name == "posteriordb":
        from tacit.data.readers import posteriordb

        return posteriordb.fetch_posteriordb(progress)
    if name not in REGISTRY:
        raise ConfigError(
            f'"{name}" has no files to fetch; the sources with files are'
            f" {', '.join((*REGISTRY, 'posteriordb'))}"
        )
    if locate(name) is None:
        folder = cache_folder() / name
        for file in REGISTRY[name]:
            if not (folder / file.name).is_file():
                _download(file, folder, progress, source=name)
    return local_files(name)


def local_files(name: str, *, only: Sequence[str] = ()) -> Path:
    """Return the folder with the files of a source, after checking their SHA-256 sums.

    Nothing is downloaded.
    """
    folder = locate(name, only=only)
    if folder is None:
        raise DataError(
            f'the files of "{name}" are missing; run `tacit data fetch {name}`, or set TACIT_DATA'
            f" to a folder that contains {name}/{_files(name, only)[0].name}"
        )
    for file in _files(name, only):
        found = _digest(file, folder / file.name)
        if found != file.sha256:
            raise DataError(
                f"{folder / file.name} has SHA-256 {found}, expected {file.sha256}; delete it and"
                f" run `tacit data fetch {name}`"
            )
    return folder


def _digest(file: PublicFile, path: Path) -> str:
    body = path.read_bytes()
    try:
        body = gzip.decompress(body) if file.unpacked else body
    except (OSError, EOFError, zlib.error):
        return f"(none: {len(body)} bytes that are not a gzip file)"
    return hashlib.sha256(body).hexdigest()


def _download(file: PublicFile, folder: Path, progress: Progress | None, *, source: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{file.name}.")
    except OSError as error:
        raise DataError(
            f"cannot write to the cache {folder} ({error}); set XDG_CACHE_HOME to a writable folder"
        ) from error
    try:
        with os.fdopen(descriptor, "wb") as out:
            _stream(file, out.write, progress)
        found = _digest(file, Path(temporary))
        if found != file.sha256:
            raise DataError(
                f"the download of {file.url} has SHA-256 {found}, expected {file.sha256}, and was"
                " deleted; the publisher may have changed the file: put the original in"
                f" $TACIT_DATA/{source}/{file.name}"
            )
        Path(temporary).replace(folder / file.name)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise DataError(
            f"could not download {file.url} ({error}); try again, or put the file in"
            f" $TACIT_DATA/{source}/{file.name}"
        ) from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def read_url(url: str, *, limit: int, source: str) -> bytes:
    """Download a URL and return its content, of at most `limit` bytes. The content is not
    checked.
    """
    body = bytearray()
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            while chunk := response.read(CHUNK_BYTES):
                body += chunk
                if len(body) > limit:
                    raise DataError(
                        f"{url} has more than {limit:,} bytes, so its download was stopped; put the"
                        f" files of {source} in $TACIT_DATA/{source}"
                    )
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise DataError(
            f"could not download {url} ({error}); try again, or put the files of {source} in"
            f" $TACIT_DATA/{source}"
        ) from error
    return bytes(body)


def _stream(file: PublicFile, write: Callable[[bytes], int], progress: Progress | None) -> None:
    """Download a file; stop if it has more bytes than expected."""
    done = 0
    with urllib.request.urlopen(file.url, timeout=TIMEOUT_S) as response:
        while done <= file.size and (chunk := response.read(CHUNK_BYTES)):
            write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(file.name, done, file.size)
