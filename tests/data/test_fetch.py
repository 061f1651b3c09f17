"""Downloads against a real server: what is put in place is always the right file, whatever the network does."""

from __future__ import annotations

import hashlib
import io
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from webserver import BODIES, MIRRORED, PUBLIC, Site, file, made_up, serving

from fedkin.data import catalogue, files
from fedkin.data.catalogue import DataSet, File, Form
from fedkin.data.fetch import Listener, Patience, fetch
from fedkin.data.files import DataError

QUICK = Patience(timeout=5.0, pauses=(0.0, 0.0))
ONE = BODIES["one.bin"]


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path) -> None:
    """An empty data folder, and nothing in the environment that leads elsewhere."""
    for variable in (
        "FEDKIN_MIRROR",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path / "data"))


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(PUBLIC) as running:
        yield running


@pytest.fixture
def toys(monkeypatch, tmp_path, site) -> Path:
    """The folder for the data set that the site has."""
    monkeypatch.setattr(catalogue, "CATALOGUE", {"toys": made_up(site.url)})
    return tmp_path / "data" / "toys"


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def get(notes):
    def get_(mirror: str | None = None, patience: Patience = QUICK) -> list[Path]:
        return fetch("toys", mirror=mirror, listener=Listener(on_note=notes.append), patience=patience)

    return get_


def complete(toys: Path) -> bool:
    """The files are there as published, and nothing else is."""
    return {path.name: path.read_bytes() for path in toys.iterdir()} == BODIES


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


# ---- when all goes well ----


def test_a_data_set_is_fetched_whole(get, toys, site):
    progress: list[tuple[str, int]] = []
    new = fetch("toys", listener=Listener(on_bytes=lambda f, here: progress.append((f.name, here))), patience=QUICK)
    assert complete(toys)
    assert new == [toys / name for name in BODIES]
    assert files.need("toys")
    assert [here for name, here in progress if name == "one.bin"][-1] == len(ONE)
    assert "python" not in site.requests[0][1]["User-Agent"].lower(), "some hosts refuse Python's own name"


def test_what_is_right_is_not_fetched_again(get, toys, site):
    get()
    assert get() == []
    assert site.asked() == ["/pub/one.bin", "/pub/two.bin"]
    (toys / "two.bin").write_bytes(b"damaged")
    before = (toys / "one.bin").stat().st_mtime_ns
    assert get() == [toys / "two.bin"]
    assert site.asked()[2:] == ["/pub/two.bin"]
    assert complete(toys)
    assert (toys / "one.bin").stat().st_mtime_ns == before


def test_a_redirection_is_followed(get, toys, site):
    site.content["/moved"] = site.content.pop("/pub/one.bin")
    site.redirects["/pub/one.bin"] = "/moved"
    get()
    assert complete(toys)


# ---- broken downloads ----


def test_a_download_that_was_cut_goes_on_where_it_ended(get, toys, site):
    site.cuts = [30_000, 50_000]
    get()
    assert complete(toys)
    assert site.ranges_asked()[:3] == [None, "bytes=30000-", "bytes=80000-"]
    assert site.requests[1][1]["If-Range"] == f'"{hashlib.md5(ONE).hexdigest()}"'


def test_a_weak_mark_is_no_promise_of_the_same_bytes(get, toys, site):
    """Servers answer a weak ETag in If-Range with the whole file: it would never be resumed."""
    site.weak = True
    site.cuts = [30_000]
    get()
    assert complete(toys)
    assert site.ranges_asked()[1] == "bytes=30000-"
    assert "If-Range" not in site.requests[1][1]


def test_the_next_command_goes_on_too(get, toys, site):
    site.cuts = [30_000, 0, 0]
    with pytest.raises(DataError, match="broke off after 30,000 of 100,000 bytes"):
        get()
    assert (toys / "one.bin.part").read_bytes() == ONE[:30_000]
    assert not (toys / "one.bin").exists()
    site.requests.clear()
    get()
    assert complete(toys)
    assert site.ranges_asked() == ["bytes=30000-", None]


def test_as_long_as_it_gets_further_patience_does_not_end(get, toys, site):
    site.cuts = [10_000] * 9
    get(patience=Patience(pauses=(0.0,)))
    assert complete(toys)
    assert len(site.requests) == 11


def test_pauses_grow_and_end(get, toys, site, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    site.statuses = [503] * 9
    with pytest.raises(DataError, match="answers 503"):
        get(patience=Patience(pauses=(1.0, 4.0, 15.0)))
    assert slept == [1.0, 4.0, 15.0]
    assert len(site.requests) == 4


def test_a_server_without_ranges_starts_over(get, toys, site):
    site.ranges = False
    site.cuts = [30_000]
    get()
    assert complete(toys)
    assert site.ranges_asked()[1] == "bytes=30000-", "it was asked for the rest, and sent everything"


def test_a_server_without_ranges_that_is_always_cut_is_given_up(get, toys, site):
    site.ranges = False
    site.cuts = [30_000] * 99
    with pytest.raises(DataError, match="broke off"):
        get()
    assert len(site.requests) == 1 + len(QUICK.pauses), "only the first got further than nothing"


def test_a_file_that_changes_on_the_server_is_not_glued_together(get, toys, site, monkeypatch):
    """The first request gets half of an old version; If-Range makes the server send all of the new one."""
    site.content["/pub/one.bin"] = bytes(len(ONE))
    site.cuts = [50_000]
    monkeypatch.setattr("time.sleep", lambda pause: site.content.update(PUBLIC))
    get()
    assert complete(toys)
    assert [path for path in site.asked() if path == "/pub/one.bin"] == ["/pub/one.bin"] * 2


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("size", [1, 50_000, 100_000, 123_456])
def test_a_part_of_something_else_is_thrown_away(get, toys, site, size, tags):
    """Of any length: shorter than the file, as long, longer."""
    site.tags = tags
    toys.mkdir(parents=True)
    (toys / "one.bin.part").write_bytes(b"?" * size)
    get()
    assert complete(toys)


def test_a_whole_part_is_only_looked_at(get, toys, site):
    toys.mkdir(parents=True)
    (toys / "one.bin.part").write_bytes(ONE)
    get()
    assert complete(toys)
    assert site.asked() == ["/pub/two.bin"]


@pytest.mark.parametrize("part", [ONE, ONE[:60_000], ONE + b"more", b"?" * len(ONE)])
def test_where_the_size_is_not_known_the_checksum_decides(get, toys, site, monkeypatch, part):
    """A whole part is answered with 416 and its length, a longer one with 416 and another length."""
    form = Form("", (File("one.bin", md5=hashlib.md5(ONE).hexdigest(), urls=(f"{site.url}/pub/one.bin",)),))
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", replace(made_up(), forms=(form,)))
    toys.mkdir(parents=True)
    (toys / "one.bin.part").write_bytes(part)
    get()
    assert [p.name for p in toys.iterdir()] == ["one.bin"]
    assert (toys / "one.bin").read_bytes() == ONE


def test_a_server_that_sends_another_range_is_asked_for_everything(get, toys, site):
    site.cuts = [60_000]
    site.shift = 1
    get()
    assert complete(toys)
    assert site.ranges_asked() == [None, "bytes=60000-", None, None]


# ---- what is not the file ----


def test_a_wrong_checksum_leaves_nothing_and_tells_both_sums(get, toys, site):
    bad = ONE[:-1] + bytes([ONE[-1] ^ 1])
    site.content["/pub/one.bin"] = bad
    with pytest.raises(DataError) as caught:
        get()
    assert hashlib.sha256(bad).hexdigest() in str(caught.value)
    assert hashlib.sha256(ONE).hexdigest() in str(caught.value)
    assert list(toys.iterdir()) == []
    assert site.asked() == ["/pub/one.bin"], "the same host would send the same"


def test_a_damaged_file_stays_until_the_right_one_is_here(get, toys, site):
    toys.mkdir(parents=True)
    (toys / "one.bin").write_bytes(b"damaged")
    site.content.clear()
    with pytest.raises(DataError):
        get()
    assert {p.name: p.read_bytes() for p in toys.iterdir()} == {"one.bin": b"damaged"}


@pytest.mark.parametrize("lengths", [True, False])
def test_a_page_in_the_place_of_a_file_is_not_taken(get, toys, site, lengths):
    """Hotel networks and moved sites answer everything with a page."""
    site.lengths = lengths
    site.content["/pub/one.bin"] = b"<html>Please log in</html>"
    toys.mkdir(parents=True)
    with pytest.raises(DataError, match="26 bytes instead of 100,000"):
        get()
    assert not (toys / "one.bin").exists()
    site.content.update(PUBLIC)
    get()
    assert complete(toys)


def test_a_page_does_not_spoil_the_part_that_is_here(get, toys, site):
    site.cuts = [30_000, 0, 0]
    with pytest.raises(DataError):
        get()
    site.content["/pub/one.bin"] = b"<html>Please log in</html>"
    with pytest.raises(DataError, match="26 bytes instead of 100,000"):
        get()
    assert (toys / "one.bin.part").read_bytes() == ONE[:30_000]


def test_no_more_is_read_than_the_file_has(toys, site):
    site.lengths = False
    site.content["/pub/one.bin"] = bytes(5_000_000)
    progress: list[int] = []
    with pytest.raises(DataError, match="sent something else"):
        fetch("toys", listener=Listener(on_bytes=lambda file, here: progress.append(here)), patience=QUICK)
    assert max(progress) == len(ONE)
    assert list(toys.iterdir()) == []


# ---- hosts ----


def test_mirrors_are_asked_in_their_order(get, toys, site, monkeypatch, notes):
    with serving({"/pub/one.bin": b"bad" + ONE[3:]}) as bad, serving(PUBLIC) as spare:
        monkeypatch.setitem(catalogue.CATALOGUE, "toys", made_up(bad.url, site.url, spare.url))
        get()
        assert complete(toys)
        assert bad.asked() == ["/pub/one.bin"], "a host that failed is asked last from then on"
        assert site.asked() == ["/pub/one.bin", "/pub/two.bin"]
        assert spare.asked() == []
    assert any(bad.url.removeprefix("http://") in note and "sent something else" in note for note in notes)


def test_another_mirror_goes_on_with_the_part_of_the_first(get, toys, site, monkeypatch):
    with serving(PUBLIC, cuts=[30_000, 0, 0]) as broken:
        monkeypatch.setitem(catalogue.CATALOGUE, "toys", made_up(broken.url, site.url))
        get()
    assert complete(toys)
    assert site.ranges_asked()[0] == "bytes=30000-"


def test_a_file_that_is_not_there_is_told_with_what_to_do(get, toys, site):
    del site.content["/pub/two.bin"]
    with pytest.raises(DataError) as caught:
        get()
    said = str(caught.value)
    assert f"two.bin: {site.url.removeprefix('http://')} does not give it (404 Not Found)." in said
    assert f"curl -L -O {site.url}/pub/two.bin  # 100 bytes" in said
    assert "/pub/one.bin" not in said, "that one is here already"
    assert f"into {toys}; then\n  fedkin data check toys" in said
    assert site.asked().count("/pub/two.bin") == 1, "asking again would not help"


def test_without_a_network_every_host_is_told_and_what_to_do(get, toys, monkeypatch):
    hosts = [f"http://127.0.0.1:{closed_port()}", "http://no-such-host.invalid"]
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", made_up(*hosts))
    with pytest.raises(DataError) as caught:
        get(patience=Patience())  # with its usual pauses: these are not waited for
    said = str(caught.value)
    assert f"{hosts[0].removeprefix('http://')} refuses the connection." in said
    assert "no-such-host.invalid cannot be found by its name" in said
    for name, size in (("one.bin", "100,000"), ("two.bin", "100")):
        assert f"curl -L -O {hosts[0]}/pub/{name}  # {size} bytes" in said
    assert "# also at http://no-such-host.invalid/pub/\n" in said
    assert str(toys) in said


def test_a_silent_server_is_not_waited_for_for_ever(get, toys, site):
    site.stalls = 1
    get(patience=Patience(timeout=0.3, pauses=(0.0,)))
    assert complete(toys)
    site.stalls = 9
    (toys / "two.bin").unlink()
    with pytest.raises(DataError, match="silent for too long"):
        get(patience=Patience(timeout=0.2, pauses=(0.0,)))


def test_a_server_may_not_lead_to_our_own_files(get, toys, site, tmp_path):
    (tmp_path / "secret").write_bytes(ONE)
    site.redirects["/pub/one.bin"] = (tmp_path / "secret").as_uri()
    with pytest.raises(DataError, match="does not give it"):
        get()
    assert not (toys / "one.bin").exists()


# ---- one's own mirror ----


def test_a_mirror_takes_the_place_of_the_public_hosts(get, toys, site, monkeypatch):
    with serving(MIRRORED) as intranet:
        get(f"{intranet.url}/mirror/")
        assert complete(toys)
        assert intranet.asked() == ["/mirror/toys/one.bin", "/mirror/toys/two.bin"]
        (toys / "one.bin").unlink()
        monkeypatch.setenv("FEDKIN_MIRROR", f"{intranet.url}/mirror")
        get()
        assert complete(toys)
    assert site.asked() == []


def test_a_mirror_can_be_a_folder(get, toys, site, tmp_path):
    there = tmp_path / "a folder" / "toys"
    there.mkdir(parents=True)
    (there / "one.bin").write_bytes(ONE)
    with pytest.raises(DataError, match=r"two.bin: file:///.* does not give it \(No such file or directory\)"):
        get(there.parent.as_uri())
    (there / "two.bin").write_bytes(b"TWO\n" * 25)
    with pytest.raises(DataError, match="two.bin: .* sent something else"):
        get(there.parent.as_uri())
    (there / "two.bin").write_bytes(BODIES["two.bin"])
    get(there.parent.as_uri())
    assert complete(toys)
    assert site.asked() == []


@pytest.mark.parametrize(
    ("mirror", "answer"),
    [
        ("ftp://host/data", "begins with http://, https:// or file://"),
        ("/mnt/data", "such as file:///mnt/data."),
        ("data.hospital.example", "begins with http://, https:// or file://"),
        ("http:///data", "names no server"),
        ("http://[::1", "is not an address"),
        ("file://mnt/data", "three slashes: file:///mnt/data"),
        ("https://ada:secret@host/data", "a user name or a password"),
        ("https://host/data?version=2", "more than a path"),
    ],
)
def test_a_mirror_that_cannot_be_one_is_answered(get, toys, mirror, answer):
    with pytest.raises(DataError) as caught:
        get(mirror)
    assert answer in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not toys.exists()


# ---- forms and archives ----


INSIDE = {"gzip/one.bin": ONE, "gzip/two.bin": BODIES["two.bin"], "gzip/unwanted.bin": b"no"}


def packed(members: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return target.getvalue()


def zipped(site: Site, body: bytes, *members: File) -> DataSet:
    """A data set that is published as one zip."""
    site.content["/pub/all.zip"] = body
    archive = file("all.zip", f"{site.url}/pub/all.zip", body=body)
    return replace(made_up(), forms=(Form("zipped", members or (file("one.bin"), file("two.bin")), archive),))


def test_only_what_is_wanted_is_unpacked_and_the_archive_goes(get, toys, site, monkeypatch):
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", zipped(site, packed(INSIDE)))
    get()
    assert complete(toys)
    assert get() == []
    assert site.asked() == ["/pub/all.zip"]


def test_an_archive_that_somebody_brought_is_used_and_left(get, toys, site, monkeypatch):
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", zipped(site, packed(INSIDE)))
    toys.mkdir(parents=True)
    (toys / "all.zip").write_bytes(packed(INSIDE))
    get()
    assert site.asked() == []
    assert sorted(p.name for p in toys.iterdir()) == ["all.zip", "one.bin", "two.bin"]


def test_a_mirror_has_the_single_files_of_an_archive(get, toys, site, monkeypatch):
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", zipped(site, packed(INSIDE)))
    with serving(MIRRORED) as intranet:
        get(f"{intranet.url}/mirror")
    assert complete(toys)
    assert site.asked() == []


def test_what_to_do_by_hand_with_an_archive(get, toys, site, monkeypatch):
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", zipped(site, packed(INSIDE)))
    site.content.clear()
    with pytest.raises(DataError) as caught:
        get()
    assert f"curl -L -O {site.url}/pub/all.zip" in str(caught.value)
    assert "fedkin data fetch toys  # unpacks it" in str(caught.value)


def test_a_path_in_an_archive_leads_nowhere_else(get, toys, site, monkeypatch, tmp_path):
    members = {"../../../one.bin": ONE, "/two.bin": BODIES["two.bin"], "../../evil.bin": b"evil"}
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", zipped(site, packed(members)))
    before = set(tmp_path.parent.rglob("*"))
    get()
    assert complete(toys)
    new = set(tmp_path.parent.rglob("*")) - before
    assert new == {toys.parent, toys, toys / "one.bin", toys / "two.bin"}


@pytest.mark.parametrize("known", [True, False])
def test_a_zip_bomb_does_not_go_off(get, toys, site, monkeypatch, known):
    bomb = packed({"one.bin": bytes(20_000_000)})
    member = file("one.bin") if known else File("one.bin", md5="0" * 32)
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", zipped(site, bomb, member))
    with pytest.raises(DataError, match="would be 20,000,000 bytes large"):
        get()
    assert not (toys / "one.bin").exists()
    assert not (toys / "one.bin.part").exists()


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (packed({"a/one.bin": ONE, "b/one.bin": ONE, "two.bin": b""}), "holds 2 files named one.bin"),
        (packed({"two.bin": BODIES["two.bin"]}), "holds 0 files named one.bin"),
        (packed({"one.bin": ONE[::-1], "two.bin": b""}), "one.bin in .* is of other content"),
        (b"this is not a zip file", "cannot be unpacked"),
        (packed(INSIDE).replace(ONE[1000:1010], b"0123456789"), "cannot be unpacked: Bad CRC-32"),
    ],
)
def test_a_bad_archive_is_answered(get, toys, site, monkeypatch, body, answer):
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", zipped(site, body))
    with pytest.raises(DataError, match=answer):
        get()
    assert not list(toys.glob("one.bin*"))


def test_a_form_without_public_address_comes_from_a_mirror_or_another_form_is_fetched(get, toys, site, monkeypatch):
    own = Form("our own", (file("one.bin"), file("two.bin")))
    original = Form("the original", (file("all.bin", f"{site.url}/pub/all.bin", body=b"all"),))
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", replace(made_up(), forms=(own, original)))
    site.content["/pub/all.bin"] = b"all"
    get()
    assert [p.name for p in toys.iterdir()] == ["all.bin"]
    (toys / "all.bin").unlink()
    with serving(MIRRORED) as intranet:
        get(f"{intranet.url}/mirror")
        assert complete(toys)
    for path in toys.iterdir():
        path.unlink()
    with serving({"/mirror/toys/all.bin": b"all"}) as intranet:
        get(f"{intranet.url}/mirror")
    assert [p.name for p in toys.iterdir()] == ["all.bin"], "the form that the mirror has"


def test_the_form_that_is_begun_is_completed(get, toys, site, monkeypatch):
    whole = Form("in one", (file("all.bin", f"{site.url}/pub/all.bin", body=b"all"),))
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", replace(made_up(), forms=(whole, *made_up(site.url).forms)))
    site.content["/pub/all.bin"] = b"all"
    toys.mkdir(parents=True)
    (toys / "two.bin").write_bytes(BODIES["two.bin"])
    assert get() == [toys / "one.bin"]
    assert complete(toys)


def test_a_data_set_that_nobody_publishes_says_what_to_put_where(get, toys, monkeypatch):
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", made_up())
    with pytest.raises(DataError, match="No public address is known") as caught:
        get()
    assert f"Put one.bin, two.bin into {toys}" in str(caught.value)


# ---- this machine ----


def test_a_folder_that_cannot_be_made_is_told(get, toys):
    toys.parent.write_text("a file in the way")
    with pytest.raises(DataError, match="cannot be written"):
        get()


CHILD = """
import sys
sys.path.insert(0, {tests!r})
from webserver import made_up
from fedkin.data import catalogue, files
from fedkin.data.fetch import Listener, fetch
catalogue.CATALOGUE = {{"toys": made_up({url!r})}}
try:
    fetch("toys", listener=Listener(on_bytes=lambda file, here: print(here, flush=True)))
except files.DataError as error:
    sys.exit(str(error))
"""


def child(url: str, **how: object) -> subprocess.Popen[str]:
    code = textwrap.dedent(CHILD).format(tests=str(Path(__file__).parents[1]), url=url)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes, **how)


def test_when_there_is_no_room_the_part_stays_and_the_command_goes_on(get, toys, site):
    """A limit on the size of files stands for a full disk."""

    def little() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    with child(site.url, preexec_fn=little) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "There is no room for" in said
    assert "the same command goes on" in said
    assert "Traceback" not in said
    assert (toys / "one.bin.part").read_bytes() == ONE[:40_000]
    get()
    assert complete(toys)
    assert site.ranges_asked()[-2] == "bytes=40000-"


def test_what_a_killed_process_leaves_is_gone_on_with(get, toys, site):
    site.holds = 60_000
    with child(site.url) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    site.holds = 0
    part = (toys / "one.bin.part").read_bytes()
    assert part == ONE[: len(part)]
    assert not (toys / "one.bin").exists()
    get()
    assert complete(toys)
