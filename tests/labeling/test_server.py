"""The server lets only the page in, and only images out."""

import http.client
import json
import threading
import time
from urllib.parse import urlsplit

import pytest

from momatch.labeling.server import HOST, LabelServer, listen
from tests.labeling.setting import copied, open_session


class Client:
    """Requests as a browser sends them, or as it never would."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname == HOST
        self.port, self.root = parts.port, parts.path

    def wait(self) -> None:
        """Until there is something to offer."""
        end = time.monotonic() + 120
        while not json.loads(self("state")[1])["is_ready"]:
            assert time.monotonic() < end, "the model takes too long"
            time.sleep(0.02)

    def __call__(self, path="", *, method="GET", body=None, root=None, **headers):
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        try:
            headers = {"Host": f"{HOST}:{self.port}", "Origin": f"http://{HOST}:{self.port}", **headers}
            data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.putrequest(method, (self.root if root is None else root) + path, skip_host=True)
            for name, value in headers.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(data or b"")))
            connection.endheaders(data)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()


@pytest.fixture(scope="module")
def client(embedded_photographs, tmp_path_factory):
    folder = copied(embedded_photographs, tmp_path_factory.mktemp("served") / "photos")
    (folder.parent / "secret.png").write_bytes((folder / "red" / "red0.png").read_bytes())
    session = open_session(folder)
    server = LabelServer(session, listen())
    thread = threading.Thread(target=server.run)
    thread.start()
    made = Client(server.address)
    made.folder, made.session = folder, session
    made.wait()
    yield made
    server.stop()
    thread.join()
    session.close()


def test_the_page_and_its_files_are_served_with_strict_headers(client):
    for path, kind in (("", "text/html"), ("page.css", "text/css"), ("page.js", "text/javascript")):
        status, content, headers = client(path)
        assert status == 200
        assert content
        assert headers["Content-Type"].startswith(kind)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    "changes",
    [
        {"root": "/wrong-token/"},
        {"root": "/"},
        {"root": "//"},
        {"Host": "evil.example:80"},
        {"Host": None},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_others_are_refused(client, changes):
    for path in ("", "state", "images/0"):
        status, content, _ = client(path, **changes)
        assert status in (400, 403)
        assert b"PNG" not in content


def test_a_post_without_an_origin_is_refused(client):
    assert client("undo", method="POST", body={}, Origin=None)[0] == 403


@pytest.mark.parametrize(
    "path",
    ["images/../../secret.png", "images/%2e%2e%2fsecret.png", "images/-1", "images/99999", "../secret.png", "labels.csv",
     "images/0/../../labels.csv", "page.css/../server.py", "images/1e3"],
)  # fmt: skip
def test_nothing_outside_the_dataset_is_served(client, path):
    status, content, _ = client(path)
    assert status in (403, 404, 405)
    assert json.loads(content)["error"]


def test_images_are_sent_as_jpeg_and_what_is_gone_says_so(client):
    status, content, headers = client("images/0")
    assert (status, headers["Content-Type"], content[:3]) == (200, "image/jpeg", b"\xff\xd8\xff")
    last = client.folder / "unlabeled" / "red9.png"
    offers = json.loads(client("offers?count=48")[1])
    row = next(offer["row"] for offer in offers if offer["name"].endswith("red9.png"))
    kept = last.read_bytes()
    try:
        last.write_bytes(b"not an image; root:x:0:0")
        status, content, _ = client(f"images/{row}")
        assert status == 410
        assert b"cannot be decoded" in content
        assert b"root:x" not in content
        last.unlink()
        assert b"gone" in client(f"images/{row}?size=small")[1]
    finally:
        last.write_bytes(kept)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("answers", b"{"),
        ("answers", []),
        ("answers", {"answers": []}),
        ("answers", {"answers": [{"row": "0", "known": "", "label": "red"}]}),
        ("answers", {"answers": [{"row": True, "known": "", "label": "red"}]}),
        ("answers", {"answers": [{"row": 0, "known": "", "label": "red", "status": "none"}]}),
        ("answers", {"answers": [{"row": 0, "known": "", "status": "labelled"}]}),
        ("answers", {"answers": [{"row": 0, "known": "", "label": "fish"}]}),
        ("answers", {"answers": [{"row": 10**6, "known": "", "label": "red"}]}),
        ("answers", {"answers": [{"row": 0, "label": "red"}]}),
        ("answers", {"answers": [{"row": 0, "known": None, "label": "red"}]}),
        ("answers", b"[" * 50_000),
        ("answers", b" " * 200_000),
        ("classes", {"name": 3}),
        ("classes", {"name": "red"}),
        ("classes", {"name": "none"}),
    ],
)
def test_bad_requests_change_nothing(client, path, body):
    before = (client.folder / "labels.csv").read_bytes()
    status, content, _ = client(path, method="POST", body=body)
    assert status in (400, 413)
    assert json.loads(content)["error"]
    assert (client.folder / "labels.csv").read_bytes() == before


def test_bad_numbers_are_refused(client):
    assert client("offers?count=x")[0] == 400
    assert client("state?shown=1,,2,%D9%A3")[0] == 400


def test_an_answer_is_on_disk_before_the_response(client):
    row = client.session.offers(1)[0]["row"]
    status, content, _ = client("answers", method="POST", body={"answers": [{"row": row, "known": "", "label": "red"}]})
    assert status == 200
    assert json.loads(content)["classes"]
    assert "labelled" in (client.folder / "labels.csv").read_text()
    offers = json.loads(client("undo", method="POST", body={})[1])
    assert [offer["row"] for offer in offers] == [row]


def test_an_answer_to_what_was_answered_otherwise_is_refused(client):
    row = client.session.offers(1)[0]["row"]

    def answer(**said):
        return client("answers", method="POST", body={"answers": [{"row": row, "known": "", **said}]})

    assert answer(label="red")[0] == 200
    before = (client.folder / "labels.csv").read_bytes()
    status, content, _ = answer(label="blue")
    assert status == 409
    assert "answered elsewhere" in json.loads(content)["error"]
    assert answer(label="red")[0] == 200, "the same said twice is no conflict"
    assert (client.folder / "labels.csv").read_bytes() == before
    client("undo", method="POST", body={})


def test_a_defect_is_said_in_json(client, monkeypatch):
    def broken(shown=()):
        raise KeyError("green")

    monkeypatch.setattr(client.session, "state", broken)
    status, content, headers = client("state")
    assert (status, headers["Content-Type"]) == (500, "application/json")
    assert "KeyError" in json.loads(content)["error"]


def test_a_port_that_is_taken_is_an_error(client):
    with pytest.raises(OSError, match="choose another --port"):
        listen(client.port)
