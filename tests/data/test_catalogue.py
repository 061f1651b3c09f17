"""The catalogue is whole, and the real files are those that it lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import SHARED

from fedkin.data import catalogue, files

real = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data files are not beside the repository")


def test_the_catalogue_is_whole():
    """Every checksum has its length, every address ends in the file's name, and no file can leave its folder. Only
    what users bring may have neither, and of what has no address, none is promised."""
    for data in catalogue.CATALOGUE.values():
        every = [f for form in data.forms for f in (*form.files, *([form.archive] if form.archive else []))]
        assert len(set(every)) == len({f.name for f in every})
        public = any(all(f.urls for f in ([form.archive] if form.archive else form.files)) for form in data.forms)
        assert public or not any(f.urls for f in every)
        assert not (public and data.bring)
        for f in every:
            assert not Path(f.name).is_absolute() and ".." not in Path(f.name).parts
            assert f.sha256 or f.md5 or data.bring
            assert re.fullmatch(r"[0-9a-f]{64}", f.sha256 or "0" * 64)
            assert re.fullmatch(r"[0-9a-f]{32}", f.md5 or "0" * 32)
            for url in f.urls:
                assert re.fullmatch(r"https?://[^ ]+/" + re.escape(f.name), url)
        assert Path(data.directory).name == data.directory
        assert data.title and data.content and data.licence and data.source


@real
@pytest.mark.parametrize("name", catalogue.CATALOGUE)
def test_the_real_files_are_those_of_the_catalogue(monkeypatch, name):
    monkeypatch.setenv("FEDKIN_DATA", str(SHARED))
    if files.find(name).bring and not files.place(name).is_dir():
        pytest.skip(f"nobody has brought {name}")
    found = files.need(name)
    assert all(path.is_file() for path in found.values())
    assert files.state(name) == "here"
    listed = (SHARED / "SOURCES.md").read_text()
    for f in files.begun(name).files:
        row = rf"`{files.find(name).directory}/{re.escape(f.name)}` \| {f.bytes:,} \| `{f.sha256}`"
        assert re.search(row, listed), f.name
