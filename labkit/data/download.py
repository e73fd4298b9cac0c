"""Data sets from the internet: downloaded once, verified by checksum, kept in a folder, never unpickled.

A download that breaks off is kept as NAME.part and goes on from there, in the same call as long as the connection
brings anything, else in the next. Two processes may fetch one file at once: both write the same bytes to the same
places. ``labkit data fetch cifar100`` does from the command line what the first `labkit.data.load` does.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import pooch
import requests
from tqdm.auto import tqdm

from labkit import cache

CHUNK = 1 << 18  # bytes
PATIENCE = (10, 60)  # seconds until connected, and between two chunks
OFFLINE = "or stay with labkit.data.digits, which need no download"


class DataError(RuntimeError):
    """Data that cannot be had or are not what they should be; the text says why and what to do."""


@dataclass(frozen=True)
class Remote:
    """A file of a data set: the folder it lies in on the internet, its name, md5, megabytes, and first bytes."""

    site: str
    name: str
    md5: str
    megabytes: int
    magic: bytes

    @property
    def url(self) -> str:
        """Below ``LABKIT_DATA_URL``, the address of a mirror, when that is set."""
        site = os.environ.get("LABKIT_DATA_URL", "").strip() or self.site
        if urlsplit(site).scheme not in ("http", "https"):
            raise ValueError(f"LABKIT_DATA_URL must start with http:// or https://, got {site!r}")
        return f"{site.rstrip('/')}/{self.name}"


CIFAR, SVHN = "https://www.cs.toronto.edu/~kriz", "http://ufldl.stanford.edu/housenumbers"
GZIP, MATLAB = b"\x1f\x8b", b"MATLAB 5.0 MAT-file"
FILES = {  # md5: of CIFAR's binary archives from their page, of SVHN those that torchvision compares with
    "cifar10": (Remote(CIFAR, "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170, GZIP),),
    "cifar100": (Remote(CIFAR, "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 169, GZIP),),
    "svhn": (
        Remote(SVHN, "train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182, MATLAB),
        Remote(SVHN, "test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64, MATLAB),
    ),
}


def folder() -> Path:
    """Where the files are: ``LABKIT_DATA`` when set, else data/ in the folder of `labkit.cache.home`."""
    return Path(os.environ.get("LABKIT_DATA") or cache.home() / "data").expanduser().absolute()


def require_name(name: str) -> None:
    """Refuse what is not the name of a data set: ValueError."""
    if not isinstance(name, str) or name not in FILES:
        raise ValueError(f"the data set must be one of {', '.join(FILES)}, got {name!r}")


def fetch(name: str, which: int | None = None, progress: bool = True) -> list[Path]:
    """The files of a data set, or one of them, in `folder`, downloaded unless they are there and intact.

    Raises ValueError for an unknown name; DataError, in one sentence, when a file cannot be downloaded or written or
    is not what it should be.
    """
    require_name(name)
    files = FILES[name] if which is None else FILES[name][which : which + 1]
    return [_fetch(file, name, progress) for file in files]


def there(name: str) -> bool:
    """Whether all files of a data set are in `folder`; whether they are intact is seen when they are read."""
    require_name(name)
    return all((folder() / file.name).is_file() for file in FILES[name])


def _fetch(file: Remote, name: str, progress: bool) -> Path:
    path, part = folder() / file.name, folder() / f"{file.name}.part"
    if path.is_file() and pooch.file_hash(str(path), alg="md5") == file.md5:
        return path  # also where nothing can be written
    _require_writable()
    url, host = file.url, urlsplit(file.url).netloc
    pooch.get_logger().setLevel("WARNING")  # what it is doing is said by the bar
    try:
        pooch.retrieve(url, f"md5:{file.md5}", file.name, folder(), downloader=partial(_resume, file, part, progress))
    except requests.RequestException as error:
        kept = f"; {text}" if (text := _kept(part)) else ""
        remedy = f"try  labkit data fetch {name}  again when this computer is online, {OFFLINE}"
        raise DataError(f"{file.name} cannot be downloaded from {host} ({_reason(error)}){kept}: {remedy}") from error
    except KeyboardInterrupt as stop:
        if text := _kept(part):
            stop.add_note(text)
        raise
    except ValueError as error:  # of pooch: the only one after a valid address
        raise DataError(
            f"{file.name} from {host} has a wrong checksum and was removed: try again, and if it stays wrong, another "
            "source (LABKIT_DATA_URL)"
        ) from error
    except OSError as error:  # a full disk
        raise DataError(f"{file.name} cannot be kept in {folder()} ({error.strerror or error})") from error
    finally:
        if not _size(part):
            part.unlink(missing_ok=True)
    return path


def _resume(file: Remote, part: Path, progress: bool, url: str, target: str, _pooch: None) -> None:
    """Bring the part to its full length, by as many requests as it takes while each brings something; then move it."""
    bar = tqdm(desc=file.name, unit="B", unit_scale=True, disable=not progress)
    with bar, _opened(part) as content:
        while True:
            before = _length(content)
            try:
                _receive(file, url, content, bar)
                break
            except requests.RequestException:
                if _length(content) <= before:
                    raise
        content.seek(0)
        with open(target, "wb") as whole:
            shutil.copyfileobj(content, whole)
    part.unlink(missing_ok=True)


def _receive(file: Remote, url: str, content: BinaryIO, bar: tqdm) -> None:
    """One request for what is missing."""
    start = _length(content)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with requests.get(url, headers=headers, stream=True, timeout=PATIENCE) as answer:
        if answer.status_code == 416 and start:  # no more: what is there is all, or not the beginning of this file
            if answer.headers.get("Content-Range", "").rpartition("/")[2] != str(start):
                content.truncate(0)
                return _receive(file, url, content, bar)
            return
        answer.raise_for_status()
        if answer.status_code != 206:
            start = 0  # a server that cannot go on somewhere gives all
        length = answer.headers.get("Content-Length")
        bar.total, bar.n = start + int(length) if length else None, start
        for chunk in answer.iter_content(CHUNK):
            if not start and not chunk.startswith(file.magic):  # what was kept until now stays
                raise DataError(_other(file, chunk))
            content.seek(start)
            start += content.write(chunk)
            bar.update(len(chunk))
        content.truncate(start)


def _other(file: Remote, chunk: bytes) -> str:
    page = chunk.lstrip()[:1] == b"<"
    found = "a web page" if page else f"something else ({chunk[:12]!r} …)"
    hint = "; does this network ask for a login?" if page else ""
    return f"{urlsplit(file.url).netloc} gave {found} in place of {file.name}{hint}"


@contextmanager
def _opened(part: Path) -> Iterator[BinaryIO]:
    part.touch()
    with open(part, "r+b", buffering=0) as content:
        yield content


def _length(content: BinaryIO) -> int:
    return content.seek(0, os.SEEK_END)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _kept(part: Path) -> str:
    return f"{size / 1e6:.3g} MB are kept, the same call goes on from there" if (size := _size(part)) else ""


def _reason(error: requests.RequestException) -> str:
    if error.response is not None:
        return f"it answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke off"
    return "no connection" if isinstance(error, requests.ConnectionError) else type(error).__name__


def _require_writable() -> None:
    place = folder()
    probe = place / f".{os.getpid()}.tmp"
    try:
        place.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise DataError(
            f"the data folder {str(place)!r} cannot be written ({getattr(error, 'strerror', error)}): point "
            "LABKIT_DATA to a folder of yours"
        ) from error
