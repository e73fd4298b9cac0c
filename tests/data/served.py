"""Tiny files of the real formats of CIFAR and SVHN, and a server on loopback that hands them out, well or badly."""

import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import scipy.io

from labkit.data import download

FOLDERS = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}


def drawn(n, n_classes, seed):
    """Bytes (n, 3, 32, 32), and labels in which every class comes up, one after the other.

    A class has a mean color and pattern of its own, so that few images teach it.
    """
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % n_classes
    typical = np.random.default_rng(12345).integers(0, 256, (n_classes, 3, 32, 32))
    noise = rng.integers(0, 256, (n, 3, 32, 32))
    return ((2 * typical[labels] + noise) // 3).astype(np.uint8), labels


def archive(members):
    """The bytes of a .tar.gz of {name: bytes or TarInfo}."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, data in members.items():
            info = data if isinstance(data, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(data, bytes):
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data) if isinstance(data, bytes) else None)
    return content.getvalue()


def cifar10(n=20, extra=()):
    folder, members = FOLDERS["cifar10"], {}
    pixels, labels = drawn(n, 10, seed=1)
    for i, rows in enumerate(np.array_split(np.arange(n), 5), start=1):
        members[f"{folder}/data_batch_{i}.bin"] = records(pixels[rows], labels[rows, None])
    pixels, labels = drawn(n, 10, seed=2)
    members[f"{folder}/test_batch.bin"] = records(pixels, labels[:, None])
    members[f"{folder}/batches.meta.txt"] = "".join(f"thing{i}\n" for i in range(10)).encode() + b"\n"
    return archive(members | dict(extra))


def cifar100(n=200, n_test=100, extra=()):
    folder, members = FOLDERS["cifar100"], {}
    for part, count, seed in (("train", n, 3), ("test", n_test, 4)):
        pixels, labels = drawn(count, 100, seed)
        members[f"{folder}/{part}.bin"] = records(pixels, np.stack([labels // 5, labels], 1))
    members[f"{folder}/fine_label_names.txt"] = "".join(f"kind{i}\n" for i in range(100)).encode()
    members[f"{folder}/coarse_label_names.txt"] = "".join(f"family{i}\n" for i in range(20)).encode()
    return archive(members | dict(extra))


def records(pixels, labels):
    return np.concatenate([labels.astype(np.uint8), pixels.reshape(len(pixels), -1)], 1).tobytes()


def svhn(n=20, seed=5):
    pixels, labels = drawn(n, 10, seed)
    return mat(X=pixels.transpose(2, 3, 1, 0), y=np.where(labels == 0, 10, labels).astype(np.uint8)[:, None])


def mat(**variables):
    content = io.BytesIO()
    scipy.io.savemat(content, variables, do_compression=True)
    return content.getvalue()


@dataclass
class Server:
    """Files by name, and how they are handed out: all but `drop_after` bytes an answer, `ranges` known or not."""

    files: dict = field(default_factory=dict)
    drop_after: int | None = None
    drops: int = 1 << 30  # how many answers break off
    ranges: bool = True
    status: int = 200
    asked: list = field(default_factory=list)  # (name, Range or None)
    url: str = ""
    answer: Callable | None = None  # (content, Range or None) -> status, headers and body, or None to behave


@contextmanager
def serving(server):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

        def do_GET(self):
            name, asked = self.path.rpartition("/")[2], self.headers.get("Range")
            server.asked.append((name, asked))
            if name not in server.files or server.status != 200:
                return self.send_error(404 if server.status == 200 else server.status)
            content = server.files[name]
            if server.answer and (given := server.answer(content, asked)):
                status, headers, body = given
                self.send_response(status)
                for header, value in headers.items():
                    self.send_header(header, value)
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = True
                return None
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and server.ranges else 0
            if start and start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.send_header("Content-Type", "text/html")  # as many servers do
                return self.end_headers()
            self.send_response(206 if asked and server.ranges else 200)
            self.send_header("Content-Length", str(len(content) - start))
            if asked and server.ranges:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            rest = content[start:]
            if server.drop_after is not None and server.drops > 0 and len(rest) > server.drop_after:
                server.drops -= 1
                rest = rest[: server.drop_after]
            self.wfile.write(rest)
            self.close_connection = True

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        server.url = f"http://127.0.0.1:{http.server_port}/some/where"
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def served(monkeypatch, folder, server):
    """Point labkit at the server: its address, the folder of the data, and the checksums of what it hands out."""
    monkeypatch.setenv("LABKIT_DATA", str(folder))
    monkeypatch.setenv("LABKIT_DATA_URL", server.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    expect(monkeypatch, server.files)


def expect(monkeypatch, files):
    changed = {
        name: tuple(
            replace(file, md5=hashlib.md5(files[file.name]).hexdigest()) if file.name in files else file
            for file in of_name
        )
        for name, of_name in download.FILES.items()
    }
    monkeypatch.setattr(download, "FILES", changed)


def everything(**sizes):
    return {
        "cifar-10-binary.tar.gz": cifar10(),
        "cifar-100-binary.tar.gz": cifar100(**sizes),
        "train_32x32.mat": svhn(),
        "test_32x32.mat": svhn(seed=6),
    }
