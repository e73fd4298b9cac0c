"""Data sets from the internet: downloaded once, verified by checksum, kept in a folder, never unpickled.

A download that breaks off is kept as NAME.part and goes on from there, in the same call as long as the connection
brings anything, else in the next. Two processes may fetch one file at once: both write the same bytes to the same
places. ``labkit data fetch cifar100`` does from the command line what the first `labkit.data.load` does.
"""

import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import pooch
import requests
import urllib3
from tqdm.auto import tqdm

from labkit import cache
from labkit.validate import require_whole

CHUNK = 1 << 14  # bytes; a connection that breaks off sooner brings nothing
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
        try:
            parts = urlsplit(site)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # brackets or a port that are none
            valid = False
        if not valid:
            raise ValueError(f"LABKIT_DATA_URL must start with http:// or https:// and a host, got {site!r}")
        return f"{site.rstrip('/')}/{self.name}"

    @property
    def host(self) -> str:
        """Where it comes from, for the reader: without name and password."""
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname


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
    """Where the files are: ``LABKIT_DATA`` when set, else data/ in the folder of `labkit.cache.home`.

    Raises DataError when a "~" in it stands for nobody's home.
    """
    try:
        return Path(os.environ.get("LABKIT_DATA", "").strip() or cache.home() / "data").expanduser().absolute()
    except (RuntimeError, OSError) as error:  # no home; the current folder was removed
        raise DataError(f"the data have no folder ({error}): point LABKIT_DATA to a folder of yours") from error


def require_name(name: str) -> None:
    """Refuse what is not the name of a data set: ValueError."""
    if not isinstance(name, str) or name not in FILES:
        raise ValueError(f"the data set must be one of {', '.join(FILES)}, got {name!r}")


def fetch(name: str, which: int | None = None, progress: bool = True) -> list[Path]:
    """The files of a data set, or one of them, in `folder`, downloaded unless they are there and intact.

    Raises ValueError for an unknown name or a number of no file; DataError, in one sentence, when a file cannot be
    downloaded, read or written or is not what it should be.
    """
    require_name(name)
    files = FILES[name]
    if which is not None:
        require_whole(0, which=which)
        if which >= len(files):
            raise ValueError(f"which must be below {len(files)}, the number of files of {name}, got {which}")
        files = files[which : which + 1]
    return [_fetch(file, name, progress) for file in files]


def there(name: str) -> bool:
    """Whether all files of a data set are in `folder`; whether they are intact is seen when they are read."""
    require_name(name)
    return all((folder() / file.name).is_file() for file in FILES[name])


def _fetch(file: Remote, name: str, progress: bool) -> Path:
    path, part = folder() / file.name, folder() / f"{file.name}.part"
    if _intact(file, path):
        return path  # also where nothing can be written
    url, host = file.url, file.host
    _require_writable()
    pooch.get_logger().setLevel("WARNING")  # what it is doing is said by the bar
    try:
        with _opened(part) as content:
            _complete(file, content, progress)

            def handed_over(_url: str, target: str, _pooch: None) -> None:
                content.seek(0)
                with open(target, "wb") as whole:
                    shutil.copyfileobj(content, whole)
                os.chmod(target, stat.S_IMODE(os.fstat(content.fileno()).st_mode))  # pooch's is for the owner alone

            try:
                pooch.retrieve(url, f"md5:{file.md5}", file.name, folder(), downloader=handed_over)
            except ValueError as error:  # another process wrote into the part after it had been compared
                raise DataError(_wrong(file)) from error
        part.unlink(missing_ok=True)
    except requests.RequestException as error:
        kept = f"; {text}" if (text := _kept(part)) else ""
        remedy = f"try  labkit data fetch {name}  again when this computer is online, {OFFLINE}"
        raise DataError(f"{file.name} cannot be downloaded from {host} ({_reason(error)}){kept}: {remedy}") from error
    except KeyboardInterrupt as stop:
        if text := _kept(part):
            stop.add_note(text)
        raise
    except OSError as error:  # a full disk
        raise DataError(f"{file.name} cannot be kept in {folder()} ({error.strerror or error})") from error
    finally:
        if not _size(part):
            part.unlink(missing_ok=True)
    return path


def _intact(file: Remote, path: Path) -> bool:
    try:
        return path.is_file() and pooch.file_hash(str(path), alg="md5") == file.md5
    except OSError as error:
        remedy = "make it readable, or point LABKIT_DATA to a folder of yours"
        raise DataError(f"{path} cannot be read ({error.strerror or error}): {remedy}") from error


def _complete(file: Remote, content: BinaryIO, progress: bool) -> None:
    """Bring the part to its full length, by as many requests as it takes while each brings something.

    Pieces that do not fit together, of another version or of a server that miscounts, are fetched as one, once.
    """
    anew = False
    with tqdm(desc=file.name, unit="B", unit_scale=True, disable=not progress) as bar:
        while True:
            before = _length(content)
            try:
                start = _receive(file, content, bar, before)
            except requests.RequestException:
                if _length(content) <= before:
                    raise
                continue
            content.seek(0)
            if hashlib.file_digest(content, "md5").hexdigest() == file.md5:
                return
            content.truncate(0)
            if anew or not start:
                raise DataError(_wrong(file))
            anew = True


def _receive(file: Remote, content: BinaryIO, bar: tqdm, start: int) -> int:
    """One request for what is missing from ``start`` on; where the answer began: at 0 from who cannot go on there."""
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with _understood(), requests.get(file.url, headers=headers, stream=True, timeout=PATIENCE) as answer:
        first, total = _extent(answer)
        if start and answer.status_code == 416 and total == start:
            return start  # no more: what is there is all
        if start and (answer.status_code == 416 or (answer.status_code == 206 and first != start)):
            return _receive(file, content, bar, 0)
        answer.raise_for_status()
        begin = start if answer.status_code == 206 else 0
        bar.total, bar.n = total, begin
        chunks = answer.raw.stream(CHUNK, decode_content=False)  # the file itself, whatever it is said to be coded as
        end = begin
        for chunk in chunks if begin else _recognized(file, chunks):  # what was kept until now stays
            content.seek(end)
            end += content.write(chunk)
            bar.update(len(chunk))
        if end < (total or 0):
            raise requests.exceptions.ChunkedEncodingError(f"{end} of {total} bytes came")
        content.truncate(end)
        return begin


def _extent(answer: requests.Response) -> tuple[int | None, int | None]:
    """Where an answer begins and how long the file is, as far as its headers say so in numbers."""
    if answer.status_code in (206, 416):
        page = answer.headers.get("Content-Type", "").startswith("text/html")
        if page and answer.status_code == 206:  # about the file, not a piece of it
            return None, None
        place, _, total = answer.headers.get("Content-Range", "").removeprefix("bytes").strip().partition("/")
        return _number(place.partition("-")[0]), _number(total)
    return 0, _number(answer.headers.get("Content-Length", ""))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


@contextmanager
def _understood() -> Iterator[None]:
    """What goes wrong below requests, as an error of requests."""
    try:
        yield
    except UnicodeError as error:  # a host whose name is none
        raise requests.exceptions.InvalidURL(str(error)) from error
    except urllib3.exceptions.ReadTimeoutError as error:
        raise requests.exceptions.ReadTimeout(str(error)) from error
    except urllib3.exceptions.HTTPError as error:
        raise requests.exceptions.ChunkedEncodingError(str(error)) from error


def _recognized(file: Remote, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes, once the first of them are those of such a file."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= len(file.magic):
            break
    if not head.startswith(file.magic):
        raise DataError(_other(file, head))
    yield head
    yield from chunks


def _other(file: Remote, head: bytes) -> str:
    page = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"<"
    found = "a web page" if page else f"something else ({head[:12]!r} …)" if head else "nothing"
    hint = "; does this network ask for a login?" if page else ""
    return f"{file.host} gave {found} in place of {file.name}{hint}"


def _wrong(file: Remote) -> str:
    return (
        f"{file.name} from {file.host} has a wrong checksum and was removed: try again, and if it stays wrong, another "
        "source (LABKIT_DATA_URL)"
    )


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
    if isinstance(error, requests.exceptions.InvalidURL):
        return "the host of this address is none"
    return "no connection" if isinstance(error, requests.ConnectionError) else type(error).__name__


def _require_writable() -> None:
    place = folder()
    probe = place / f".{os.getpid()}-{threading.get_ident()}.tmp"
    try:
        place.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink(missing_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise DataError(
            f"the data folder {str(place)!r} cannot be written ({getattr(error, 'strerror', error)}): point "
            "LABKIT_DATA to a folder of yours"
        ) from error
