import hashlib
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from momatch.data import locate
from momatch.data.catalog import KNOWN, Known, Layout, RemoteFile
from momatch.data.locate import check_md5, fetch, find, obtain, unpack
from momatch.data.report import DataError

CONTENT = bytes(range(256)) * 4096


class Handler(BaseHTTPRequestHandler):
    """A server that knows ranges and can break off in the middle of a file."""

    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.ranges else 0
        if start >= len(CONTENT):
            self.send_response(416)
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        end = len(CONTENT)
        if server.break_after:
            end = start + server.break_after.pop(0)
        self.wfile.write(CONTENT[start:end])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.asked, running.ranges, running.break_after = [], True, []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def remote_of(server, content=CONTENT):
    md5 = hashlib.md5(content).hexdigest()
    return RemoteFile(f"http://127.0.0.1:{server.server_port}/file.bin", md5, 1)


def test_downloads_and_checks(server, tmp_path):
    path = fetch(remote_of(server), tmp_path, download=True, progress=False)
    assert path.read_bytes() == CONTENT
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file.bin"]
    fetch(remote_of(server), tmp_path, download=True, progress=False)
    assert len(server.asked) == 1


def test_goes_on_after_a_break_in_the_same_call(server, tmp_path):
    server.break_after = [100_000, 200_000]
    path = fetch(remote_of(server), tmp_path, download=True, progress=False)
    assert path.read_bytes() == CONTENT
    assert server.asked[0] is None
    assert all(asked.startswith("bytes=") for asked in server.asked[1:])


def test_goes_on_where_an_earlier_process_stopped(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:123_456])
    assert fetch(remote_of(server), tmp_path, download=True, progress=False).read_bytes() == CONTENT
    assert server.asked == ["bytes=123456-"]


def test_a_server_without_ranges_sends_the_whole_again(server, tmp_path):
    server.ranges = False
    (tmp_path / "file.bin.part").write_bytes(b"something else entirely")
    assert fetch(remote_of(server), tmp_path, download=True, progress=False).read_bytes() == CONTENT


def test_a_wrong_part_is_found_out_and_forgotten(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"x" * len(CONTENT))
    with pytest.raises(DataError, match="wrong checksum"):
        fetch(remote_of(server), tmp_path, download=True, progress=False)
    assert list(tmp_path.iterdir()) == []
    assert fetch(remote_of(server), tmp_path, download=True, progress=False).read_bytes() == CONTENT


def test_a_wrong_checksum_names_file_expected_and_got(server, tmp_path):
    wrong = replace(remote_of(server), md5="0" * 32)
    got = hashlib.md5(CONTENT).hexdigest()
    with pytest.raises(DataError, match=rf"wrong checksum.*file\.bin(.|\n)*{'0' * 32}(.|\n)*{got}"):
        fetch(wrong, tmp_path, download=True, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_put_there_by_hand_is_checked_and_never_overwritten(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"wrong checksum: .*file\.bin has MD5"):
        fetch(remote_of(server), tmp_path, download=True, progress=False)
    assert (tmp_path / "file.bin").read_bytes() == b"mine"
    assert server.asked == []


def test_without_network_the_error_says_what_to_fetch_and_where_to_put_it(tmp_path):
    # Port 9 of this machine: nobody listens there.
    remote = RemoteFile("http://127.0.0.1:9/file.bin", "0" * 32, 12)
    with pytest.raises(DataError, match=rf"cannot download(.|\n)*put into {tmp_path}(.|\n)*{remote.url} \(about 12 MB"):
        fetch(remote, tmp_path, download=True, progress=False)
    with pytest.raises(DataError, match="download is off"):
        fetch(remote, tmp_path, download=False, progress=False)


def test_every_missing_file_is_named(tmp_path, options):
    with pytest.raises(DataError) as caught:
        obtain("mnist", tmp_path, options)
    for remote in KNOWN["mnist"].layouts[0].remote:
        assert remote.url in str(caught.value)
        assert remote.md5 in str(caught.value)


def make_archive(path, inner):
    source = path.parent / "source" / inner
    source.mkdir(parents=True)
    (source / "data.bin").write_bytes(b"data")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(source, inner)


def test_an_archive_put_there_by_hand_is_checked_and_unpacked(tmp_path, options, monkeypatch):
    make_archive(tmp_path / "toy.tar.gz", "toy")
    md5 = hashlib.md5((tmp_path / "toy.tar.gz").read_bytes()).hexdigest()
    remote = RemoteFile("http://127.0.0.1:9/toy.tar.gz", md5, 1, is_archive=True)
    known = Known("toy", 1, 1, (), (Layout(("toy",), ("data.bin",), (remote,)),))
    monkeypatch.setitem(locate.KNOWN, "toy", known)
    assert find("toy", tmp_path) is None
    _, folder = obtain("toy", tmp_path, options)
    assert (folder / "data.bin").read_bytes() == b"data"
    obtain("toy", tmp_path, replace(options, verify=True))
    (tmp_path / "toy.tar.gz").write_bytes(b"other")
    with pytest.raises(DataError, match="wrong checksum"):
        obtain("toy", tmp_path, replace(options, verify=True))
    (tmp_path / "toy.tar.gz").unlink()
    with pytest.raises(DataError, match="only it has an official checksum"):
        obtain("toy", tmp_path, replace(options, verify=True))


def test_a_broken_archive_leaves_nothing_behind(tmp_path):
    make_archive(tmp_path / "toy.tar.gz", "toy")
    whole = (tmp_path / "toy.tar.gz").read_bytes()
    with pytest.raises(DataError, match="no folder 'wrong' inside"):
        unpack(tmp_path / "toy.tar.gz", tmp_path / "wrong")
    (tmp_path / "toy.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(tmp_path / "toy.tar.gz", tmp_path / "toy")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["source", "toy.tar.gz"]


def test_check_md5_names_both_sums(tmp_path):
    (tmp_path / "file.bin").write_bytes(b"x")
    with pytest.raises(DataError, match="has MD5 9dd4e461268c8034f5c8564e155c67a6, expected 1234"):
        check_md5(tmp_path / "file.bin", RemoteFile("http://127.0.0.1:9/file.bin", "1234", 1))


def test_catalog_has_whole_checksums():
    for known in KNOWN.values():
        for layout in known.layouts:
            for remote in layout.remote:
                assert len(remote.md5) == 32
                assert int(remote.md5, 16)
