"""Downloads from a server on loopback that behaves, breaks off, forgets, or hands out something else."""

import os
import threading

import pytest
import requests

from labkit import cache
from labkit.cache import CacheError
from labkit.course.command import main
from labkit.data import download
from labkit.data.download import DataError, fetch
from tests.data.served import Server, everything, expect, served, serving

NAME, FILE = "cifar100", "cifar-100-binary.tar.gz"
HTML = b"<!DOCTYPE html><html><body>Please log in</body></html>" * 50
FILES = everything()


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "CHUNK", 1000)
    with serving(Server(dict(FILES))) as server:
        served(monkeypatch, tmp_path / "data", server)
        yield server


def kept(tmp_path):
    return sorted(path.name for path in (tmp_path / "data").iterdir())


def test_a_file_is_downloaded_once_and_kept_as_it_is(server, tmp_path):
    for _ in range(2):
        (path,) = fetch(NAME, progress=False)
        assert path == tmp_path / "data" / FILE and path.read_bytes() == FILES[FILE]
    assert server.asked == [(FILE, None)] and kept(tmp_path) == [FILE]


def test_a_set_of_two_files_and_one_of_them(server, tmp_path):
    assert [path.name for path in fetch("svhn", which=1, progress=False)] == ["test_32x32.mat"]
    assert not download.there("svhn")
    assert [path.name for path in fetch("svhn", progress=False)] == ["train_32x32.mat", "test_32x32.mat"]
    assert [name for name, _ in server.asked] == ["test_32x32.mat", "train_32x32.mat"] and download.there("svhn")


def test_a_download_that_breaks_off_goes_on_where_it_was(server, tmp_path):
    server.drop_after = 20_000
    fetch(NAME, progress=False)
    starts = [int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0 for _, asked in server.asked]
    assert len(starts) > 3 and starts == sorted(set(starts))  # each request asks for what the one before did not bring
    assert kept(tmp_path) == [FILE]


def test_what_was_kept_is_used_by_the_next_call(server, tmp_path):
    """The server breaks off, then answers nothing; later it is well again."""
    server.drop_after, server.drops = 50_000, 1
    whole, server.files[FILE] = server.files[FILE], server.files[FILE]
    answer = requests.get
    with pytest.MonkeyPatch.context() as patch:

        def once(*args, **options):
            if server.asked:
                raise requests.ConnectionError("gone")
            return answer(*args, **options)

        patch.setattr(requests, "get", once)
        with pytest.raises(DataError, match=r"no connection\); 0.05 MB are kept, the same call goes on from there"):
            fetch(NAME, progress=False)
    assert kept(tmp_path) == [f"{FILE}.part"]
    fetch(NAME, progress=False)
    assert server.asked[-1] == (FILE, "bytes=50000-") and kept(tmp_path) == [FILE]
    assert (tmp_path / "data" / FILE).read_bytes() == whole


def test_a_server_that_cannot_go_on_gives_all(server, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{FILE}.part").write_bytes(FILES[FILE][:5000])
    server.ranges = False
    assert fetch(NAME, progress=False)[0].read_bytes() == FILES[FILE]
    assert server.asked == [(FILE, "bytes=5000-")]


@pytest.mark.parametrize("too_much", [b"", b"more"])
def test_a_part_that_is_whole_or_longer(server, tmp_path, too_much):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{FILE}.part").write_bytes(FILES[FILE] + too_much)
    assert fetch(NAME, progress=False)[0].read_bytes() == FILES[FILE]
    assert len(server.asked) == (2 if too_much else 1) and kept(tmp_path) == [FILE]


def test_two_at_once_do_not_spoil_each_other(server, tmp_path):
    paths = []
    threads = [threading.Thread(target=lambda: paths.extend(fetch(NAME, progress=False))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 4 and {path.read_bytes() == FILES[FILE] for path in paths} == {True}
    assert kept(tmp_path) == [FILE]


def test_a_wrong_checksum_is_refused_and_not_kept(server, tmp_path):
    server.files[FILE] = FILES[FILE][:-1] + b"x"
    with pytest.raises(DataError, match="has a wrong checksum and was removed"):
        fetch(NAME, progress=False)
    assert kept(tmp_path) == []


def test_a_wrong_part_is_found_out_and_the_next_call_starts_afresh(server, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{FILE}.part").write_bytes(FILES[FILE][:100] + b"?" * 900)
    assert fetch(NAME, progress=False)[0].read_bytes() == FILES[FILE]
    assert server.asked == [(FILE, "bytes=1000-"), (FILE, None)] and kept(tmp_path) == [FILE]


def sizes(start, end, total):
    return {"Content-Range": f"bytes {start}-{end - 1}/{total}", "Content-Length": str(end - start)}


PAGE = {"Content-Type": "text/html", "Content-Length": str(len(HTML))}
WRONG_TO_RANGE = {  # what a server makes of "bytes=5000-"; asked for all, it behaves
    "another place": lambda c, n: (206, sizes(0, n, n), c),
    "another place, further on": lambda c, n: (206, sizes(6000, n, n), c[6000:]),
    "several parts": lambda c, n: (206, {"Content-Type": "multipart/byteranges; boundary=x"}, b"--x\r\n" + c[5000:]),
    "a page": lambda c, n: (206, PAGE, HTML),
    "a page that claims to be it": lambda c, n: (206, PAGE | sizes(5000, 5000 + len(HTML), n), HTML),
    "other bytes": lambda c, n: (206, sizes(5000, n, n), bytes(n - 5000)),
    "no more than was kept": lambda c, n: (416, {"Content-Range": "bytes */5000", "Content-Length": "0"}, b""),
    "too little, and it says not how much": lambda c, n: (206, {"Content-Range": "bytes 5000-"}, c[5000:-9]),
    "nonsense": lambda c, n: (206, {"Content-Range": "none", "Content-Length": "nine"}, c),
}


@pytest.mark.parametrize("wrong", WRONG_TO_RANGE)
def test_a_wrong_answer_to_what_is_missing_does_not_spoil_the_file(server, tmp_path, wrong):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{FILE}.part").write_bytes(FILES[FILE][:5000])
    server.answer = lambda content, asked: asked and WRONG_TO_RANGE[wrong](content, len(content))
    assert fetch(NAME, progress=False)[0].read_bytes() == FILES[FILE]
    assert server.asked == [(FILE, "bytes=5000-"), (FILE, None)] and kept(tmp_path) == [FILE]


def test_an_answer_of_a_slice_is_followed_by_the_next(server):
    def slices(content, asked):
        start = int(asked[6:-1]) if asked else 0
        end = min(start + 20_000, len(content))
        return 206 if asked else 200, {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}, content[start:end]

    (server.answer, whole) = (lambda content, asked: asked and slices(content, asked)), FILES[FILE]
    server.drop_after = 10_000
    assert fetch(NAME, progress=False)[0].read_bytes() == whole
    assert [asked for _, asked in server.asked[:3]] == [None, "bytes=10000-", "bytes=30000-"]


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate"])
def test_an_archive_said_to_be_coded_is_kept_as_it_is(server, coding):
    server.answer = lambda content, asked: (
        200, {"Content-Encoding": coding, "Content-Length": str(len(content))}, content
    )  # fmt: skip
    assert fetch(NAME, progress=False)[0].read_bytes() == FILES[FILE]


@pytest.mark.parametrize("length", [None, "many", "-5", "1e6"])
def test_a_length_that_is_none_is_not_needed(server, length):
    server.answer = lambda content, asked: (200, {"Content-Length": length} if length else {}, content)
    assert fetch(NAME, progress=False)[0].read_bytes() == FILES[FILE]


@pytest.mark.parametrize("status", [200, 204])
def test_an_empty_answer_is_said_and_replaces_nothing(server, tmp_path, status):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{FILE}.part").write_bytes(FILES[FILE][:700])
    server.answer = lambda content, asked: (status, {"Content-Length": "0"}, b"")
    with pytest.raises(DataError, match=rf"^127.0.0.1:\d+ gave nothing in place of {FILE}$"):
        fetch(NAME, progress=False)
    assert kept(tmp_path) == [f"{FILE}.part"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_file_may_be_read_by_whom_the_computer_allows(server, mask):
    before = os.umask(mask)
    try:
        (path,) = fetch(NAME, progress=False)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_file_that_cannot_be_read_is_named(server, monkeypatch):
    (path,) = fetch(NAME, progress=False)

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(download.pooch, "file_hash", refuse)
    with pytest.raises(DataError, match=rf"{path} cannot be read \(Permission denied\): make it readable, or point"):
        fetch(NAME, progress=False)


def test_a_chunk_may_be_shorter_than_what_tells_the_file(server, monkeypatch):
    monkeypatch.setattr(download, "CHUNK", 7)
    assert fetch("svhn", which=1, progress=False)[0].read_bytes() == FILES["test_32x32.mat"]


def test_a_download_is_no_file_of_another_name_while_it_lasts(server, tmp_path, monkeypatch):
    """What kill -9 leaves is the part, which the next call uses."""
    seen, write = [], download.tqdm.update
    monkeypatch.setattr(download.tqdm, "update", lambda *arguments: seen.append(kept(tmp_path)) or write(*arguments))
    fetch(NAME, progress=False)
    assert seen and all(names == [f"{FILE}.part"] for names in seen)


def test_a_damaged_file_is_downloaded_anew(server, tmp_path):
    (path,) = fetch(NAME, progress=False)
    path.write_bytes(b"\x1f\x8b damaged")
    assert fetch(NAME, progress=False)[0].read_bytes() == FILES[FILE]


@pytest.mark.parametrize("begun", [0, 700])
@pytest.mark.parametrize("name, file", [(NAME, FILE), ("svhn", "train_32x32.mat")])
def test_a_web_page_in_place_of_the_file_is_refused(server, tmp_path, name, file, begun):
    (tmp_path / "data").mkdir()
    if begun:
        (tmp_path / "data" / f"{file}.part").write_bytes(FILES[file][:begun])
    server.files[file], server.ranges = b"\xef\xbb\xbf \n" * bool(begun) + HTML, False
    with pytest.raises(DataError, match=rf"gave a web page in place of {file}; does this network ask for a login\?"):
        fetch(name, progress=False)
    parts = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    assert parts == ({f"{file}.part": FILES[file][:begun]} if begun else {})  # the page replaced nothing


def test_something_else_is_refused_before_it_is_all_there(server):
    server.files[FILE] = b"%PDF-1.4" + bytes(10_000)
    with pytest.raises(DataError, match=r"gave something else \(b'%PDF-1.4"):
        fetch(NAME, progress=False)


@pytest.mark.parametrize("status, words", [(404, "it answered 404 Not Found"), (503, "it answered 503")])
def test_what_a_server_answers_is_said(server, status, words):
    server.status = status
    with pytest.raises(DataError, match=words):
        fetch(NAME, progress=False)
    assert len(server.asked) == 1


def test_offline_one_sentence_says_what_to_do_and_names_the_digits(server, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA_URL", "http://127.0.0.1:1")
    with pytest.raises(DataError) as caught:
        fetch(NAME, progress=False)
    assert str(caught.value) == (
        f"{FILE} cannot be downloaded from 127.0.0.1:1 (no connection): try  labkit data fetch cifar100  again when "
        "this computer is online, or stay with labkit.data.digits, which need no download"
    )
    assert kept(tmp_path) == []


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_folder_that_cannot_be_written_is_named(server, tmp_path, monkeypatch, below):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "file" / below))
    with pytest.raises(DataError, match=r"the data folder '.*file.*' cannot be written \(.*\): point LABKIT_DATA to"):
        fetch(NAME, progress=False)
    assert not server.asked


def test_a_folder_that_can_only_be_read_is_enough_for_who_has_the_file(server, tmp_path, monkeypatch):
    fetch(NAME, progress=False)

    def refuse():
        raise AssertionError("nothing is to be written")

    monkeypatch.setattr(download, "_require_writable", refuse)
    assert fetch(NAME, progress=False)[0].read_bytes() == FILES[FILE]


def test_a_full_disk_is_said(server, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_receive", full)
    with pytest.raises(DataError, match=r"cannot be kept in .* \(No space left on device\)"):
        fetch(NAME, progress=False)


def test_who_stops_a_download_is_told_what_is_kept(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(download.tqdm, "update", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["data", "fetch", NAME]) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "stopped; 0.001 MB are kept, the same call goes on from there"
    assert kept(tmp_path) == [f"{FILE}.part"]


def test_bad_names_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="the data set must be one of cifar10, cifar100, svhn, got 'mnist'"):
        fetch("mnist")
    monkeypatch.setenv("LABKIT_DATA_URL", "ftp://somewhere")
    for which, sentence in [(5, "which must be below 2, .* got 5"), (-1, "which must be >= 0"), ("0", "which must be")]:
        with pytest.raises((ValueError, TypeError), match=sentence):
            fetch("svhn", which=which)


@pytest.mark.parametrize("address", ["ftp://somewhere", "http://[", "http://", "http://host:port", "http://host:99999"])
def test_an_address_that_is_none_is_refused(monkeypatch, address):
    monkeypatch.setenv("LABKIT_DATA_URL", address)
    with pytest.raises(ValueError, match="LABKIT_DATA_URL must start with http:// or https:// and a host, got '"):
        fetch(NAME)


def test_a_host_that_cannot_be_one_is_said(server, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA_URL", f"http://{'a' * 70}.example")
    with pytest.raises(DataError, match=r"cannot be downloaded from a+\.example \("):
        fetch(NAME, progress=False)


def test_a_password_in_an_address_is_not_shown(server, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA_URL", "http://me:secret@127.0.0.1:1")
    with pytest.raises(DataError, match="cannot be downloaded from 127.0.0.1:1 ") as caught:
        fetch(NAME, progress=False)
    assert "secret" not in str(caught.value)


def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("LABKIT_DATA", raising=False)
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    assert download.folder() == tmp_path / "data"
    monkeypatch.setenv("LABKIT_DATA", " ")
    assert download.folder() == tmp_path / "data"
    monkeypatch.setenv("LABKIT_DATA", "~/images")
    assert download.folder().name == "images" and "~" not in str(download.folder())


NOBODY = "~no-such-user-here/place"


@pytest.mark.parametrize("variable, other", [("LABKIT_DATA", "LABKIT_CACHE"), ("LABKIT_CACHE", "LABKIT_DATA")])
def test_a_home_of_nobody_is_said_with_what_to_set(monkeypatch, capsys, variable, other):
    monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, NOBODY)
    with pytest.raises(DataError, match="the data have no folder .*: point LABKIT_DATA to a folder of yours"):
        fetch(NAME, progress=False)
    for words in (["data", "list"], ["data", "fetch", NAME]):
        assert main(words) == 1
        assert capsys.readouterr().err.endswith("point LABKIT_DATA to a folder of yours\n")
    if variable == "LABKIT_CACHE":
        with pytest.raises(CacheError, match="is nowhere .*: point LABKIT_CACHE to a folder of yours"):
            cache.home()


def test_every_file_is_described():
    files = [file for of_name in download.FILES.values() for file in of_name]
    assert len({file.name for file in files}) == len({file.md5 for file in files}) == len(files)
    assert all(len(file.md5) == 32 and file.url.endswith(f"/{file.name}") for file in files)


# ---- the command


def test_the_command_fetches_and_lists(server, tmp_path, capsys):
    assert main(["data"]) == 0
    assert "cifar100   169 MB  labkit data fetch cifar100\n" in capsys.readouterr().out
    assert main(["data", "fetch", "cifar100", "cifar10"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [str(tmp_path / "data" / name) for name in (FILE, "cifar-10-binary.tar.gz")]
    assert FILE in said.err  # the bar
    assert main(["data", "list"]) == 0
    said = capsys.readouterr().out
    assert "cifar100   169 MB  there\n" in said and said.endswith(f"in {tmp_path / 'data'}\n")


def test_the_command_says_in_one_sentence_what_is_wrong(server, monkeypatch, capsys):
    for words, sentence in [
        (["fetch"], "Which data set? One or more of cifar10, cifar100, svhn."),
        (["fetch", "mnist"], "the data set must be one of cifar10, cifar100, svhn, got 'mnist'"),
    ]:
        assert main(["data", *words]) == 1
        assert capsys.readouterr().err == sentence + "\n"
    monkeypatch.setenv("LABKIT_DATA_URL", "http://127.0.0.1:1")
    assert main(["data", "fetch", NAME]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{FILE} cannot be downloaded from 127.0.0.1:1")
    expect(monkeypatch, {FILE: b"another"})
    monkeypatch.setenv("LABKIT_DATA_URL", server.url)
    assert main(["data", "fetch", NAME]) == 1
    assert "wrong checksum" in capsys.readouterr().err


def test_the_command_goes_on_with_the_next_data_set(server, tmp_path, capsys):
    del server.files[FILE]
    assert main(["data", "fetch", NAME, "cifar10"]) == 1
    said = capsys.readouterr()
    assert said.out.split() == [str(tmp_path / "data" / "cifar-10-binary.tar.gz")]
    assert said.err.splitlines()[-1].startswith(f"{FILE} cannot be downloaded")
